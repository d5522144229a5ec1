"""1x1 convolutions before upsampling and concatenations: which ones go there, and that they compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from relaxc.service.passes.simplify.pointwise_first import PointwiseFirst
from tests.passes.graphs import graph, operators
from tests.passes.layout.blocked import inputs, same, weight

R = relax.op


def twice(x: relax.Expr, axis: int, size: int) -> relax.Expr:
    return R.take(x, relax.const(np.repeat(np.arange(size), 2), "int64"), axis, mode="clip")


def test_convolutions_go_before_upsampling_and_concatenation() -> None:
    def net(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        up = twice(twice(x, 2, 5), 3, 6)
        return R.nn.relu(R.nn.conv2d(R.concat([up, y], 1), weight(3, 20, 1, 1)))

    module = graph(net, x=(2, 13, 5, 6), y=(2, 7, 10, 12))
    changed = PointwiseFirst()(module)
    assert operators(changed) == ["nn.conv2d", "take", "take", "nn.conv2d", "add", "nn.relu"]
    same(module, changed, *inputs((2, 13, 5, 6), (2, 7, 10, 12)))


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners"])
def test_bilinear_interpolation(mode: str) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        up = R.image.resize2d(x, (11, 9), method="linear", coordinate_transformation_mode=mode, layout="NCHW")
        return R.nn.conv2d(up, weight(6, 7, 1, 1))

    module = graph(net, x=(1, 7, 5, 6))
    changed = PointwiseFirst()(module)
    assert operators(changed) == ["nn.conv2d", "image.resize2d"]
    same(module, changed, *inputs((1, 7, 5, 6)))


@pytest.mark.parametrize(
    ("out", "geometry", "kernel", "axis", "reads"),
    [
        (9, {}, 1, 2, 1),  # more channels after it
        (4, {"strides": 2}, 1, 2, 1),
        (4, {"padding": 1}, 1, 2, 1),
        (4, {}, 3, 2, 1),
        (4, {}, 1, 1, 1),  # along the channels
        (4, {}, 1, 0, 1),  # along the batch
        (4, {}, 1, 2, 2),  # read twice
    ],
)
def test_what_stays(out: int, geometry: dict[str, Any], kernel: int, axis: int, reads: int) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        up = twice(x, axis, 8)
        channels = 16 if axis == 1 else 8
        y = R.nn.conv2d(up, weight(out, channels, kernel, kernel), **geometry)
        return y if reads == 1 else R.add(R.sum(up), y)

    module = graph(net, x=(8, 8, 8, 8))
    assert PointwiseFirst()(module).same_as(module)


def test_a_concatenation_without_upsampling_stays() -> None:
    def net(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return R.nn.conv2d(R.concat([x, y], 1), weight(2, 16, 1, 1))

    module = graph(net, x=(1, 8, 5, 5), y=(1, 8, 5, 5))
    assert PointwiseFirst()(module).same_as(module)
