"""Transposed convolutions as convolutions of phases: against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tvm import relax

from relaxc.service.passes.common.rewrite import is_tensor_constant
from tests.passes.graphs import compute, graph, operators
from tests.passes.layout.blocked import blocked, inputs, weight

pytestmark = pytest.mark.sampled

R = relax.op

GEOMETRIES: list[dict[str, Any]] = [
    {"stride": 2, "padding": 1},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": (2, 3)},
    {"stride": (3, 1), "padding": (2, 0), "output_padding": (2, 0)},
    {"stride": 1, "padding": 1},
    {"stride": 5, "padding": 1},
    {"stride": 2, "padding": 4},
]


def transposed(x: relax.Expr, w: relax.Expr, stride: Any, padding: Any = 0, output_padding: Any = 0) -> relax.Expr:
    def two(value: Any) -> tuple[int, int]:
        return value if isinstance(value, tuple) else (value, value)

    sides = two(padding) * 2
    return R.nn.conv2d_transpose(x, w, strides=two(stride), padding=sides, output_padding=two(output_padding))


@pytest.mark.sampled(most=6)
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (4, 4), (1, 5)])
@pytest.mark.parametrize(("channels", "out"), [(16, 32), (5, 3)])
def test_against_torch(geometry: dict[str, Any], kernel: tuple[int, int], channels: int, out: int) -> None:
    (x,), w = inputs((2, channels, 7, 9)), weight(channels, out, *kernel)
    try:
        want = torch.nn.functional.conv_transpose2d(torch.tensor(x), torch.tensor(w.value.numpy()), **geometry).numpy()
    except RuntimeError:
        pytest.skip("no result is left")
    module = graph(lambda x: R.nn.relu(transposed(x, w, **geometry)), x=("n", channels, 7, 9))
    changed, _ = blocked(module)
    assert operators(changed) == ["pack_channels", "conv2d", "interleave", "nn.relu", "unpack_channels"]
    np.testing.assert_allclose(compute(changed, x)[0], np.maximum(want, 0), rtol=1e-4, atol=1e-4)


def test_the_phases_multiply_no_inserted_zeros() -> None:
    module = graph(lambda x: transposed(x, weight(16, 16, 4, 4), 2, 1), x=(1, 16, 8, 8))
    changed, _ = blocked(module)
    constants: list[tuple[int, ...]] = []

    def visit(expr: Any) -> None:
        if is_tensor_constant(expr):
            constants.append(expr.value.numpy().shape)

    relax.analysis.post_order_visit(changed["main"], visit)
    assert [int(np.prod(shape)) for shape in constants] == [16 * 16 * 4 * 4]


@pytest.mark.parametrize(("groups", "dilation"), [(2, 1), (1, 2)])
def test_groups_and_dilations_stay(groups: int, dilation: int) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        return R.nn.conv2d_transpose(x, weight(16, 16, 3, 3), strides=2, groups=groups, dilation=dilation)

    module = graph(net, x=(1, 16, 8, 8))
    assert blocked(module)[0].same_as(module)
