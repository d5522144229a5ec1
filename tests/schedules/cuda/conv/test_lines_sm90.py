"""`cuda.lines_sm90`: what it takes and declines, its results by the kernel's own text on the CPU, and its code."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.conv import lines_sm90
from relaxc.schedules.cuda.conv.compute import Windows
from relaxc.schedules.cuda.conv.lines_sm90 import LinesSm90, Strip, kernel
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.cuda.images import prim_func, result_of
from tests.schedules.cuda.simulated import run

SPEC = resolve("cuda-sm90")
TARGET = to_tvm(SPEC)
GPU = gpu_of(TARGET)
RULE = LinesSm90()
STEM = Windows("rows", (7, 7), (2, 2), (3, 0))


def wanted(windows: Windows, image: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """`relu(windows of the image + bias)` in fp32."""
    (kh, kw), (sy, sx), above = windows.kernel, windows.strides, windows.padding[0]
    height, width = result_of(windows, image.shape, *windows.padding)
    padded = np.pad(image.astype("float32"), ((0, 0), (above, above), (0, 0), (0, 0)))
    sums = np.zeros((image.shape[0], height, width, weight.shape[1]), "float32")
    for r, q in itertools.product(range(kh), range(kw)):
        top = r * windows.dilation[0]
        taken = padded[:, top : top + (height - 1) * sy + 1 : sy, q : q + (width - 1) * sx + 1 : sx]
        sums += taken @ weight[r, :, q].astype("float32").T
    return np.maximum(sums + bias, 0)


@pytest.mark.parametrize(
    ("windows", "image", "filters", "point"),
    [
        (STEM, (2, 13, 37, 8), 40, {"pixels": 16, "consumers": 2}),
        pytest.param(
            *(Windows("rows", (3, 3), (1, 1), (1, 0), (2, 1)), (1, 9, 27, 8), 72, {"pixels": 32, "consumers": 3}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(Windows("rows", (2, 4), (2, 1), (0, 0)), (3, 7, 11, 8), 8, {"pixels": 8, "consumers": 3}),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_its_text_computes_them(tmp_path, windows, image, filters, point):
    func = prim_func(windows, image, filters)
    found = RULE.match(func)
    assert not isinstance(found, Declined)
    assert point["pixels"] in RULE.points(func, TARGET).values["pixels"]
    draw = np.random.default_rng(len(image) + filters)
    x = draw.standard_normal(image).astype("float16")
    kh, kw = windows.kernel
    w = (draw.standard_normal((kh, filters, kw, 8)) / (kh * kw)).astype("float16")
    bias = draw.standard_normal((1, 1, 1, filters)).astype("float32")
    out = np.full((image[0], *found.result, filters), np.nan, "float16")
    run(kernel(Strip(found, point["pixels"], point["consumers"]), GPU), [x, w, out, bias], tmp_path)
    np.testing.assert_allclose(out.astype("float32"), wanted(windows, x, w, bias), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("stages", "consumers", "late"),
    [
        (2, 3, -1),
        pytest.param(3, 2, -1, marks=pytest.mark.slow),
        pytest.param(2, 3, 6, marks=pytest.mark.slow),  # of a warpgroup that has no tile of most strips
        pytest.param(2, 2, 9, marks=pytest.mark.slow),  # a warp that copies
    ],
)
def test_no_warp_misses_a_strip_of_a_short_ring(tmp_path, monkeypatch, stages, consumers, late):
    monkeypatch.setattr(lines_sm90, "_MAX_STAGES", stages)
    windows, image = Windows("rows", (2, 1)), (1, 73, 8, 8)  # 9 strips, of one CTA
    found = RULE.match(prim_func(windows, image, 8))
    assert not isinstance(found, Declined)
    draw = np.random.default_rng(stages)
    x = draw.standard_normal(image).astype("float16")
    w = draw.standard_normal((2, 8, 1, 8)).astype("float16")
    bias = draw.standard_normal((1, 1, 1, 8)).astype("float32")
    out = np.full((1, *found.result, 8), np.nan, "float16")
    strip = Strip(found, 8, consumers)
    assert strip.stages == stages and strip.units == 9
    run(kernel(strip, replace(GPU, sms=1)), [x, w, out, bias], tmp_path, late)
    np.testing.assert_allclose(out.astype("float32"), wanted(windows, x, w, bias), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("windows", "image", "filters", "reason"),
    [
        (Windows("taps", (3, 3), padding=(1, 1)), (1, 9, 9, 8), 8, "8 channels"),
        (Windows("rows", (3, 3)), (1, 9, 9, 16), 8, "8 channels"),
        (Windows("rows", (3, 3), (1, 4)), (1, 9, 9, 8), 8, "stride"),
        (STEM, (1, 20, 26, 8), 136, "128 filters"),
        (Windows("rows", (7, 7), (8, 2), dilation=(8, 1)), (1, 80, 400, 8), 128, "do not fit"),
        (Windows("max", (3, 3)), (1, 9, 9, 8), 0, "kind max"),
    ],
)
def test_it_declines(windows, image, filters, reason):
    result = RULE.proposed(prim_func(windows, image, filters), TARGET)
    assert isinstance(result, Declined) and reason in result.reason


@pytest.mark.parametrize(
    ("windows", "image", "filters", "pixels"),
    [
        (STEM, (32, 224, 230, 8), 64, 16),
        (STEM, (1, 224, 230, 8), 64, 16),
        (Windows("rows", (3, 3), (2, 2), (1, 0)), (32, 224, 226, 8), 32, 16),
        (Windows("rows", (3, 3), (1, 1), (1, 0)), (32, 224, 226, 8), 64, 16),
        (STEM, (32, 37, 54, 8), 40, 24),  # a line of 24 pixels
        (STEM, (2, 37, 20, 8), 40, 8),  # and one of 7
    ],
)
def test_a_model_gets_it_with_the_strips_that_were_fastest(windows, image, filters, pixels):
    func = prim_func(windows, image, filters)
    first = next(rule for rule in RULES if not isinstance(rule.apply(func, TARGET), Declined))
    made = first.apply(func, TARGET)
    assert first.name == RULE.name and made.parameters == {"pixels": pixels, "consumers": 3}


def test_every_point_of_the_space_fits_the_device():
    func = prim_func(STEM, (32, 224, 230, 8), 64)
    space, found = RULE.points(func, TARGET).values, RULE.match(func)
    for point in itertools.product(*space.values()):
        launch = kernel(Strip(found, *point), GPU)
        assert launch.shared_bytes <= GPU.shared_bytes_per_block and launch.threads <= 512


def test_the_machine_code_multiplies_on_tensor_cores(disassembled):
    func = prim_func(STEM, (1, 20, 26, 8), 40)
    sass = disassembled(RULE.apply(func, TARGET, RULE.proposed(func, TARGET)).func)
    assert "HGMMA.64x64x16" in sass and "LDGSTS" in sass
