"""What is between convolutions stays blocked, and takes in no lane past the last channel."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.passes.graphs import graph, operators
from tests.passes.layout.blocked import CPU, blocked, inputs, same, weight

pytestmark = pytest.mark.sampled

R = relax.op


@pytest.mark.sampled("8-3-True")
@pytest.mark.parametrize(
    ("first", "second", "blocks"), [(CPU.lanes(32), 24, True), (CPU.lanes(32), 3, True), (24, 7, False)]
)
def test_concatenation_of_whole_blocks_stays_blocked(first: int, second: int, blocks: bool) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y, z = (R.nn.relu(R.nn.conv2d(x, weight(n, 5, 3, 3), padding=1)) for n in (first, second))
        scaled = R.add(R.multiply(R.concat([y, z], 1), weight(first + second, 1, 1)), weight(first + second, 1, 1))
        return R.nn.conv2d(R.nn.relu(scaled), weight(20, first + second, 1, 1))

    if not blocks and first % CPU.lanes(32) == 0:
        pytest.skip("whole blocks on this machine")
    module = graph(net, x=(2, 5, 7, 9))
    changed, reason = blocked(module)
    assert ("1 unpacks" in reason) == blocks
    same(module, changed, *inputs((2, 5, 7, 9)))


def test_concatenation_of_mostly_plain_images_stays_plain() -> None:
    lanes = CPU.lanes(32)

    def net(x: relax.Expr) -> relax.Expr:
        return R.concat([R.nn.conv2d(x, weight(lanes, 2 * lanes, 1, 1)), x], 1)

    module = graph(net, x=(1, 2 * lanes, 5, 6))
    changed, _ = blocked(module)
    assert operators(changed)[-2:] == ["unpack_channels", "concat"]
    same(module, changed, *inputs((1, 2 * lanes, 5, 6)))


@pytest.mark.parametrize("channels", [CPU.lanes(32), 13])
def test_division_never_makes_nans_of_lanes_past_the_last_channel(channels: int) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.conv2d(x, weight(channels, 4, 1, 1))
        return R.nn.conv2d(R.divide(y, R.nn.relu(R.add(y, relax.const(50.0)))), weight(8, channels, 1, 1))

    module = graph(net, x=(1, 4, 6, 5))
    changed, _ = blocked(module)
    assert ("unpack_channels1" in operators(changed)) == (channels == 13)
    same(module, changed, *inputs((1, 4, 6, 5)))


@pytest.mark.parametrize(("axis", "blocks"), [(2, True), (-1, True), (1, False)])
@pytest.mark.parametrize("channels", [CPU.lanes(32), 13])
def test_rows_and_columns_are_taken_of_blocks(axis: int, blocks: bool, channels: int) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.conv2d(x, weight(channels, 4, 1, 1))
        return R.nn.relu(R.take(y, relax.const(np.array([0, 0, 1, 1, 4, 3]), "int64"), axis, mode="clip"))

    module = graph(net, x=(2, 4, 5, 6))
    changed, _ = blocked(module)
    assert (operators(changed)[-1] == "unpack_channels") == blocks
    same(module, changed, *inputs((2, 4, 5, 6)))


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("size", [(11, 7), (5, 13), (2, 3)])
@pytest.mark.parametrize("channels", [CPU.lanes(32), 13])
def test_bilinear_interpolation_of_blocks(mode: str, size: tuple[int, int], channels: int) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.conv2d(x, weight(channels, 4, 1, 1))
        return R.nn.relu(R.image.resize2d(y, size, method="linear", coordinate_transformation_mode=mode, layout="NCHW"))

    module = graph(net, x=(2, 4, 5, 7))
    changed, _ = blocked(module)
    assert (operators(changed)[-1] == "unpack_channels") == (mode != "asymmetric")
    same(module, changed, *inputs((2, 4, 5, 7)))
