"""Quantized models: an output may be off by what the reference itself moves, and a fault is still found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from relaxc.service.runtime.compare import compare
from relaxc.service.runtime.moved import MOVED_BY, moved_outputs, quantizations_move_by, scattered_outputs

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
LAYERS = [RNG.integers(-128, 128, (64, 64)).astype("int32") for _ in range(4)]
DATA = {"x": RNG.standard_normal((32, 64)).astype("float32")}
SCALES, ZERO = [0.03, 0.015, 0.015, 0.015], 7


def quantized(x: Array, scale: float, zero: int, high: int = 127) -> Array:
    return np.clip(np.rint(x / np.float32(scale)) + zero, -128, high)


def network(
    inputs: Mapping[str, Array],
    *,
    moves: Callable[[], float] = lambda: 1.0,
    zero: int = ZERO,
    swapped: bool = False,
    high: int = 127,
) -> dict[str, Array]:
    """Four layers of bytes with a relu between; the arguments are faults, but for how quantizations are moved."""
    x = inputs["x"]
    scales = [SCALES[1], SCALES[0], *SCALES[2:]] if swapped else SCALES
    for index, (weights, scale) in enumerate(zip(LAYERS, scales, strict=True)):
        steps = quantized(x, scale * moves(), ZERO if index != 2 else zero, high)
        x = np.maximum((steps - ZERO) @ weights * (SCALES[index] * 0.002), 0).astype("float32")
    return {"y": x, "q": quantized(x, 0.05 * moves(), 0).astype("int8")}


def moved(count: int = 4) -> list[dict[str, Array]]:
    rng = np.random.default_rng(1)
    return [network(DATA, moves=lambda: 1 + MOVED_BY * rng.choice((-1, 1))) for _ in range(count)]


def on_boundaries(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The same computation with other rounding: what lies on a boundary falls elsewhere."""
    rng = np.random.default_rng(5)
    return network(inputs, moves=lambda: 1 + 1e-5 * rng.standard_normal())


def test_a_step_is_no_fault() -> None:
    want, got = network(DATA), on_boundaries(DATA)
    assert not compare(got, want).passed
    passed = compare(got, want, moved=moved_outputs(moved(), want))
    assert passed.passed, passed.reason
    assert [row.moved for row in passed.outputs] == [True, True]


@pytest.mark.parametrize(
    "fault", [{"zero": ZERO + 1}, {"swapped": True}, {"high": 255}], ids=["zero point", "scales swapped", "saturation"]
)
def test_a_fault_is_found(fault: dict[str, Any]) -> None:
    want = network(DATA)
    failed = compare(network(DATA, **fault), want, moved=moved_outputs(moved(), want))
    assert [row.passed for row in failed.outputs] == [False, False]


def test_noise_bounds_nothing() -> None:
    want = {"y": RNG.standard_normal(100).astype("float32")}
    noise = [{"y": want["y"] + np.random.default_rng(i).standard_normal(100)} for i in range(4)]
    got = {"y": (want["y"] * 1.01).astype("float32")}
    assert not compare(got, want, moved=moved_outputs(noise, want)).passed


def test_a_model_that_quantizes_nothing_does_not_move() -> None:
    assert moved_outputs([], network(DATA)) == {}


SIZE = 4000
VALUES = np.random.default_rng(0).standard_normal(SIZE)


def scattered(seed: int, *, fault: float = 0.0) -> dict[str, Array]:
    """The same values, each off by about 0.02 in a way of its own, as a deep network makes it of its rounding; a fault
    is off by `fault` in another.
    """
    wrong = np.random.default_rng(99).standard_normal(SIZE)
    return {"y": (VALUES + 0.02 * np.random.default_rng(seed).standard_normal(SIZE) + fault * wrong).astype("float32")}


@pytest.mark.parametrize("seed", range(20, 26))
@pytest.mark.parametrize(("fault", "passes"), [(0.0, True), (0.01, False), (0.02, False)])
def test_a_network_that_scatters_is_judged_by_the_middle_of_the_runs(seed: int, fault: float, passes: bool) -> None:
    """Right builds are further from each other than from what is not rounded, and none is further from the middle."""
    real, want, got = scattered(1), scattered(2), scattered(seed, fault=fault)
    runs = [scattered(each) for each in range(3, 19)]
    scatter = scattered_outputs(runs, want, real, alike=True)
    found = compare(got, want, moved=moved_outputs(runs, want), scatter=scatter)
    assert found.passed is passes, found.reason
    row = found.outputs[0]
    assert row.bound is not None and row.rms_error is not None
    assert 0.02 < row.bound < 0.0225 and (row.rms_error < row.bound) is passes


def test_an_output_that_is_further_from_what_is_not_rounded_is_wrong() -> None:
    """As near to the middle as others, and on the far side of it."""
    real = {"y": (VALUES * 1.02).astype("float32")}
    want, runs = scattered(2), [scattered(each) for each in range(3, 19)]
    scatter = scattered_outputs(runs, want, real, alike=True)
    for factor, passes in ((1.0, True), (0.994, False)):
        found = compare(
            {"y": scattered(20)["y"] * np.float32(factor)}, want, None, None, moved_outputs(runs, want), scatter
        )
        assert found.passed is passes, found.reason
    assert "from what is not rounded" in found.reason


def test_sums_of_8_bit_floats_on_a_gpu_have_fewer_digits() -> None:
    assert quantizations_move_by("cuda", ["float32", "float8_e4m3fn"]) > MOVED_BY
    assert quantizations_move_by("cuda", ["int8"]) == quantizations_move_by("llvm", ["float8_e4m3fn"]) == MOVED_BY
