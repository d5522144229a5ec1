"""Blocked convolutions and packed products: the form they take, and that they compute what was asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from schedules.cpu.conv.blocked_plan import row_tile
from schedules.hardware import cpu_of
from service.passes.layout.block_channels import BlockChannels
from service.passes.layout.pack_matmul import PackMatmul
from service.passes.report import OptimizeReport
from tests.passes.graphs import TARGET, compute, graph, operators

pytestmark = pytest.mark.sampled

R = relax.op
CPU = cpu_of(TARGET)


def weight(*shape: int) -> relax.Expr:
    """A seeded constant."""
    return relax.const(np.random.default_rng(len(shape)).standard_normal(shape).astype("float32"))


def blocked(module: tvm.IRModule) -> tuple[tvm.IRModule, str]:
    """The module after the pass, and what the report says of its layout."""
    report = OptimizeReport()
    return BlockChannels(report, CPU)(module), report.layout.reason


def inputs(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def same(module: tvm.IRModule, changed: tvm.IRModule, *arrays: np.ndarray) -> None:
    """Both modules compute the same."""
    for got, want in zip(compute(changed, *arrays), compute(module, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_chain_is_packed_once_and_unpacked_once() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.relu(R.add(R.nn.conv2d(x, weight(16, 16, 3, 3), padding=1), weight(1, 16, 1, 1)))
        return R.nn.relu(R.add(R.nn.conv2d(y, weight(16, 16, 1, 1)), y))

    module = graph(net, x=(2, 16, 9, 11))
    changed, reason = blocked(module)
    assert reason == "2 convolutions blocked, 1 packs and 1 unpacks"
    assert operators(changed) == [
        *("pack_channels", "conv2d", "add", "nn.relu"),
        *("conv2d1", "add", "nn.relu", "unpack_channels"),
    ]
    same(module, changed, *inputs((2, 16, 9, 11)))


@pytest.mark.parametrize("channels", [3, 8, 13, 24])
@pytest.mark.parametrize(
    "geometry",
    [
        {},
        {"padding": 1},
        {"strides": 2, "padding": (1, 0, 2, 1)},
        {"dilation": 2, "padding": 2},
        {"strides": (2, 1)},
    ],
)
def test_any_channels_strides_dilations_and_paddings(channels: int, geometry: dict[str, Any]) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        return R.sigmoid(R.nn.conv2d(x, weight(10, channels, 3, 3), **geometry))

    module = graph(net, x=(1, channels, 13, 31))
    changed, _ = blocked(module)
    assert not changed.same_as(module)
    same(module, changed, *inputs((1, channels, 13, 31)))


@pytest.mark.parametrize(("groups", "channels", "out"), [(24, 24, 24), (13, 13, 13), (2, 32, 16), (4, 32, 64)])
def test_depthwise_and_grouped(groups: int, channels: int, out: int) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        return R.nn.relu(R.nn.conv2d(x, weight(out, channels // groups, 3, 3), padding=1, groups=groups))

    module = graph(net, x=(2, channels, 7, 10))
    changed, _ = blocked(module)
    assert not changed.same_as(module)
    same(module, changed, *inputs((2, channels, 7, 10)))


def test_groups_that_do_not_fill_vectors_stay_as_they_are() -> None:
    module = graph(lambda x: R.nn.conv2d(x, weight(12, 6, 3, 3), groups=2), x=(1, 12, 8, 8))
    assert blocked(module)[0].same_as(module)


@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_pooling_and_means_stay_blocked(pool: str, count_include_pad: bool) -> None:
    extra = {"count_include_pad": count_include_pad} if pool == "avg_pool2d" else {}

    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.conv2d(x, weight(12, 12, 1, 1))
        y = getattr(R.nn, pool)(y, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1), **extra)
        scale = R.mean(y, [2, 3], keepdims=True)
        return R.multiply(y, R.sigmoid(scale))

    module = graph(net, x=(1, 12, 15, 15))
    changed, reason = blocked(module)
    assert reason.endswith("1 packs and 1 unpacks")
    same(module, changed, *inputs((1, 12, 15, 15)))


@pytest.mark.parametrize("bins", [(1, 1), (2, 3), (6, 6), (4, 6)])
def test_adaptive_pooling(bins: tuple[int, int]) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        return R.nn.relu(R.nn.adaptive_avg_pool2d(R.nn.conv2d(x, weight(12, 12, 1, 1)), bins))

    module = graph(net, x=(1, 12, 6, 6))
    changed, _ = blocked(module)
    adaptive = "nn.adaptive_avg_pool2d" in operators(changed)
    assert adaptive == (bins == (4, 6))
    same(module, changed, *inputs((1, 12, 6, 6)))


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


def test_the_maximum_of_an_image() -> None:
    module = graph(lambda x: R.max(R.nn.conv2d(x, weight(12, 12, 1, 1)), [2, 3], keepdims=True), x=("n", 12, 6, 7))
    changed, _ = blocked(module)
    assert operators(changed)[-2:] == ["max_image", "unpack_channels"]
    same(module, changed, *inputs((3, 12, 6, 7)))


def squeeze_and_excite(reads: int, size: int, out: int, padding: int = 0, batch: Any = 2) -> tvm.IRModule:
    """A gated image that `reads` convolutions read."""
    kernel = 2 * padding + 1

    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.relu(R.nn.conv2d(x, weight(20, 20, 1, 1)))
        gate = R.nn.conv2d(R.nn.silu(R.nn.conv2d(R.mean(y, [2, 3], True), weight(4, 20, 1, 1))), weight(20, 4, 1, 1))
        z = R.multiply(R.sigmoid(gate), y)
        results = [R.nn.conv2d(z, weight(out, 20, kernel, kernel), padding=padding) for _ in range(reads)]
        return R.nn.relu(results[0] if reads == 1 else R.add(*results))

    return graph(net, x=(batch, 20, size, size + 1))


@pytest.mark.sampled("3-70-0", "9-16-0")
@pytest.mark.parametrize(("size", "out", "padding"), [(3, 70, 0), (9, 16, 0), (9, 16, 1), (3, 70, 1)])
def test_a_gate_is_in_the_convolution_that_reads_its_image(size: int, out: int, padding: int) -> None:
    module = squeeze_and_excite(1, size, out, padding)
    changed, _ = blocked(module)
    assert "multiply" not in operators(changed)
    same(module, changed, *inputs((2, 20, size, size + 1)))


@pytest.mark.slow
def test_an_image_read_twice_is_multiplied_once_and_not_within_the_gate() -> None:
    module = squeeze_and_excite(2, 9, 16)
    changed, _ = blocked(module)
    assert operators(changed).count("multiply") == 1
    fused = relax.transform.FuseOps()(relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(changed)))
    names = [str(var.name_hint) for var in fused.get_global_vars()]
    assert not [name for name in names if "sigmoid" in name and "multiply" in name]
    same(module, changed, *inputs((2, 20, 9, 10)))


@pytest.mark.slow
def test_a_gate_of_a_symbolic_batch() -> None:
    module = squeeze_and_excite(1, 9, 16, batch="n")
    changed, _ = blocked(module)
    assert "multiply" not in operators(changed)
    same(module, changed, *inputs((3, 20, 9, 10)))


def test_one_gate_for_a_batch_of_images_is_no_gate() -> None:
    def net(x: relax.Expr, g: relax.Expr) -> relax.Expr:
        y = R.multiply(R.nn.relu(R.nn.conv2d(x, weight(16, 16, 1, 1))), g)
        return R.nn.conv2d(y, weight(16, 16, 1, 1))

    module = graph(net, x=(3, 16, 5, 5), g=(1, 16, 1, 1))
    changed, _ = blocked(module)
    assert "multiply" in operators(changed)
    same(module, changed, *inputs((3, 16, 5, 5), (1, 16, 1, 1)))


def test_a_symbolic_batch() -> None:
    module = graph(lambda x: R.nn.relu(R.nn.conv2d(x, weight(16, 16, 3, 3), padding=1)), x=("n", 16, 8, 8))
    changed, _ = blocked(module)
    assert not changed.same_as(module)
    for batch in (1, 3):
        same(module, changed, *inputs((batch, 16, 8, 8)))


@pytest.mark.parametrize("rows", [(1, 197), (1,), (1, 3), (5,), (2, 3, 7), (128,)])
@pytest.mark.parametrize("columns", [1, 31, 48, 100, 1000])
def test_packed_products(rows: tuple[int, ...], columns: int) -> None:
    module = graph(lambda x: R.nn.relu(R.matmul(x, weight(20, columns))), x=(*rows, 20))
    changed = PackMatmul(CPU)(module)
    assert not changed.same_as(module)
    same(module, changed, *inputs((*rows, 20)))


def test_symbolic_rows_and_variable_weights_stay_as_they_are() -> None:
    for module in (
        graph(lambda x: R.matmul(x, weight(20, 40)), x=("n", 3, 20)),
        graph(lambda x, y: R.matmul(x, y), x=(64, 20), y=(20, 40)),
    ):
        assert operators(PackMatmul(CPU)(module)) == ["matmul"]


def test_a_row_tile_wastes_little() -> None:
    assert [row_tile(extent, 14) for extent in (1, 7, 14, 19, 28, 49, 56, 197)] == [1, 7, 14, 10, 14, 10, 14, 11]
