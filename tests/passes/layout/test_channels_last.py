"""Depthwise convolutions on NHWC: the form of the graph, where it stays as it is, and the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relaxc.schedules.hardware import cpu_of
from relaxc.service.passes.layout.channels_last import ChannelsLast
from relaxc.service.passes.simplify.merge_equal_calls import MergeEqualCalls
from tests.passes.graphs import TARGET, assert_unchanged, graph, operators
from tests.passes.layout.blocked import inputs, same, weight

pytestmark = pytest.mark.sampled

R = relax.op
PASS = ChannelsLast(cpu_of(TARGET))
TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]


def depthwise(x: relax.Expr, channels: int = 16, kernel: int = 3, **geometry: Any) -> relax.Expr:
    return R.nn.conv2d(x, weight(channels, 1, kernel, kernel), groups=channels, **{"padding": kernel // 2, **geometry})


def block(x: relax.Expr) -> relax.Expr:
    """ConvNeXt's: everything but the convolution and the sum on NHWC."""
    y = R.nn.gelu(R.matmul(R.permute_dims(depthwise(x), TO_NHWC), weight(16, 16)))
    return R.add(x, R.permute_dims(y, TO_NCHW))


def changed_as(module: tvm.IRModule, expected: list[str], *arrays: np.ndarray) -> None:
    changed = PASS(module)
    assert operators(changed) == expected
    same(module, changed, *arrays)


def test_blocks_behind_a_layer_norm_have_no_transposition_inside() -> None:
    module = graph(lambda x: R.permute_dims(block(block(R.permute_dims(x, TO_NCHW))), TO_NHWC), x=(1, 9, 7, 16))
    body = ["matmul", "nn.gelu", "add"]
    expected = ["depthwise_conv2d_nhwc", *body, "depthwise_conv2d_nhwc", *body]
    changed = MergeEqualCalls()(relax.transform.CanonicalizeBindings()(PASS(module)))
    assert sorted(operators(changed)) == sorted(expected)
    same(module, changed, *inputs((1, 9, 7, 16)))


def test_behind_a_convolution_its_result_is_transposed_once() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        return R.permute_dims(block(block(R.nn.conv2d(x, weight(16, 3, 2, 2), strides=2))), TO_NHWC)

    module = graph(net, x=(2, 3, 12, 10))
    changed = PASS(module)
    names = operators(changed)
    assert names.count("depthwise_conv2d_nhwc") == 1
    assert sum(name == "nn.conv2d" for name in names) == 2
    same(module, changed, *inputs((2, 3, 12, 10)))


@pytest.mark.parametrize(
    "geometry", [{"strides": 2}, {"dilation": 2, "padding": 2}, {"padding": (0, 1, 2, 1)}, {"strides": (1, 3)}]
)
@pytest.mark.parametrize("channels", [8, 24])
def test_strides_dilations_and_paddings(channels: int, geometry: dict[str, Any]) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        return R.nn.relu(depthwise(R.permute_dims(x, TO_NCHW), channels, **geometry))

    expected = ["depthwise_conv2d_nhwc", "permute_dims", "nn.relu"]
    changed_as(graph(net, x=(1, 13, 11, channels)), expected, *inputs((1, 13, 11, channels)))


def test_what_stays_as_it_is() -> None:
    assert_unchanged(graph(lambda x: depthwise(R.nn.relu(x)), x=(1, 16, 9, 9)), PASS)
    assert_unchanged(graph(lambda x: depthwise(R.permute_dims(x, TO_NCHW), 12), x=(1, 9, 9, 12)), PASS)
    assert_unchanged(graph(lambda x: depthwise(R.permute_dims(x, [0, 3, 2, 1])), x=(1, 9, 9, 16)), PASS)
    assert_unchanged(
        graph(lambda x: R.nn.conv2d(R.permute_dims(x, TO_NCHW), weight(8, 16, 3, 3)), x=(1, 9, 9, 16)), PASS
    )
    assert_unchanged(
        graph(lambda x: R.permute_dims(R.add(x, R.permute_dims(x, TO_NCHW)), TO_NHWC), x=(1, 8, 8, 8)), PASS
    )
