"""`cuda.conv2d_sm90`: what it takes and declines, how it cuts images into boxes, and its code."""

from __future__ import annotations

import itertools

import pytest
import tvm_ffi

from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.cuda.conv.compute import Windows
from relaxc.schedules.cuda.conv.conv2d_sm90 import Conv2dSm90, kernel
from relaxc.schedules.cuda.conv.form import box_of, match
from relaxc.schedules.cuda.gemm.tile import Tile, refusal
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.cuda.images import prim_func

SPEC = resolve("cuda-sm90")
TARGET = to_tvm(SPEC)
RULE = Conv2dSm90()
SQUARE = Windows("taps", (3, 3), padding=(1, 1))


@pytest.mark.parametrize(
    ("windows", "image", "k"),
    [
        (SQUARE, (2, 14, 14, 72), 9 * 128),
        (Windows("taps", (1, 1), (2, 2)), (1, 9, 9, 64), 64),
        (Windows("taps", (3, 2), (2, 1), (1, 0), (1, 2)), (3, 9, 11, 8), 6 * 64),
        (Windows("rows", (7, 7), (2, 2), (3, 0)), (1, 20, 26, 8), 7 * 64),
    ],
)
def test_it_takes_convolutions_with_what_is_fused(windows, image, k):
    func = prim_func(windows, image, 40, residual=True)
    found = match(func)
    assert not isinstance(found, Declined)
    assert (found.m, found.n, found.k) == (image[0] * found.result[0] * found.result[1], 40, k)
    assert len(found.operands) == 2 and "relaxc_max" in found.epilogue
    made = RULE.apply(func, TARGET)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    assert tvm_ffi.structural_equal(made.func, RULE.apply(func, TARGET, made.parameters).func)


@pytest.mark.parametrize(
    ("windows", "image", "filters", "reason"),
    [
        (SQUARE, (1, 9, 9, 12), 8, "multiples of 8"),
        (SQUARE, (1, 9, 9, 8), 12, "multiples of 8"),
        (Windows("taps", (1, 1), (9, 1)), (1, 19, 9, 8), 8, "strides"),
        (Windows("rows", (9, 9), (1, 1)), (1, 19, 19, 8), 8, "64 elements"),
        (Windows("rows", (3, 3), padding=(1, 1)), (1, 9, 9, 8), 8, "one piece"),
        (Windows("max", (3, 3)), (1, 9, 9, 8), 0, "kind max"),
    ],
)
def test_it_declines(windows, image, filters, reason):
    result = RULE.apply(prim_func(windows, image, filters), TARGET)
    assert isinstance(result, Declined) and reason in result.reason


def test_other_devices_and_dtypes_are_declined():
    func = prim_func(SQUARE, (1, 9, 9, 8), 8)
    assert isinstance(RULE.apply(func, to_tvm(resolve("cuda-sm80"))), Declined)
    assert "16-bit" in RULE.apply(prim_func(SQUARE, (1, 9, 9, 8), 8, dtype="float32"), TARGET).reason


@pytest.mark.parametrize("sizes", [(1, 56, 56), (32, 7, 7), (3, 13, 29), (1, 1, 300), (5, 1, 1)])
@pytest.mark.parametrize("steps", [(1, 1), (2, 2), (8, 8)])
def test_boxes_fit_a_tile_and_what_a_copy_spans(sizes, steps):
    for rows in (64, 128):
        images, lines, pixels = box_of(sizes, steps, rows)
        assert images * lines * pixels <= rows
        assert pixels * steps[1] <= 256 and lines * steps[0] <= 256
        assert images <= sizes[0] and lines <= sizes[1] and pixels <= sizes[2]


def test_boxes_of_common_images_waste_little():
    for size, batch in itertools.product((56, 28, 14, 7), (1, 32)):
        images, lines, pixels = box_of((batch, size, size), (1, 1), 128)
        tiles = -(-batch // images) * -(-size // lines) * -(-size // pixels)
        assert tiles <= 1 + 1.2 * batch * size * size / 128


def test_every_point_of_the_space_fits_the_device():
    gpu, func = gpu_of(TARGET), prim_func(SQUARE, (2, 14, 14, 64), 256)
    space, conv = RULE.points(func, TARGET).values, match(func)
    for point in itertools.product(*space.values()):
        tile = Tile.of(dict(zip(space, point, strict=True)))
        if refusal(tile):
            assert isinstance(RULE.apply(func, TARGET, tile.parameters()), Declined)
            continue
        launch = kernel(conv, tile, gpu)
        assert launch.shared_bytes <= gpu.shared_bytes_per_block and launch.grid % launch.cluster == 0


@pytest.mark.parametrize(
    ("image", "filters"),
    [((1, 28, 28, 512), 1024), ((1, 14, 14, 1024), 2048)],  # 32 clusters of four took 1.6 times as long or more
)
def test_sums_are_split_by_clusters_that_run_at_once(image, filters):
    made = RULE.apply(prim_func(Windows("taps", (1, 1), (2, 2)), image, filters), TARGET)
    assert (made.parameters["rows"], made.parameters["columns"], made.parameters["splits"]) == (64, 64, 2)


def test_sums_are_split_in_four_where_the_clusters_fit():
    made = RULE.apply(prim_func(SQUARE, (1, 14, 14, 256), 256), TARGET)
    assert made.parameters["splits"] == 4


def test_the_machine_code_multiplies_on_tensor_cores_what_the_copy_engine_reads(disassembled):
    sass = disassembled(RULE.apply(prim_func(SQUARE, (2, 14, 14, 64), 64, residual=True), TARGET).func)
    assert "HGMMA.64x" in sass and "UTMALDG.4D" in sass
