"""ChooseLayout: NHWC only where it saves transposes, and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm.relax import op

from relaxc.service.passes import OptimizeReport
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.layout.choose_layout import ChooseLayout
from tests.passes.graphs import TARGET, assert_unchanged, compute, graph, ops, random, weights


def chosen(module: tvm.IRModule) -> tuple[tvm.IRModule, OptimizeReport]:
    report = OptimizeReport()
    with TARGET:
        return ChooseLayout(report)(module), report


def channels_last(x: Any) -> Any:
    """A network over `[N, H, W, C]` as an exporter of NCHW convolutions writes it."""
    inner = op.nn.conv2d(op.permute_dims(x, [0, 3, 1, 2]), weights(8, 4, 3, 3), padding=1)
    inner = op.nn.relu(op.add(inner, weights(1, 8, 1, 1)))
    norm = op.nn.layer_norm(
        op.permute_dims(inner, [0, 2, 3, 1]), constant(np.ones(8, "float32")), constant(np.zeros(8, "float32")), axes=-1
    )
    again = op.nn.conv2d(op.permute_dims(norm, [0, 3, 1, 2]), weights(4, 8, 1, 1))
    return op.permute_dims(again, [0, 2, 3, 1])


def test_transposes_around_convolutions_go() -> None:
    module = graph(channels_last, x=("n", 6, 6, 4))
    after, report = chosen(module)
    assert report.layout.chosen == "NHWC"
    assert report.layout.moved_after < report.layout.moved_before
    assert "permute_dims" not in ops(after)
    x = random(2, 6, 6, 4)
    np.testing.assert_allclose(compute(after, x)[0], compute(module, x)[0], rtol=1e-5, atol=1e-5)


def test_a_model_without_transposes_stays() -> None:
    module = graph(lambda x: op.nn.relu(op.nn.conv2d(x, weights(8, 4, 3, 3))), x=("n", 4, 8, 8))
    _, report = chosen(module)
    assert report.layout.chosen == "NCHW"
    assert_unchanged(module, ChooseLayout(report))


def test_transposes_that_are_not_the_convolutions_stay() -> None:
    module = graph(lambda x: op.permute_dims(op.nn.conv2d(x, weights(8, 4, 3, 3)), [1, 0, 2, 3]), x=(2, 4, 8, 8))
    _, report = chosen(module)
    assert report.layout.chosen == "NCHW"
    assert report.layout.moved_before > 0
