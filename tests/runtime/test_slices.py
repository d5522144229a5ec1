"""One channel that is wrong is found among errors as large as those of all roundings, and scattered errors are none."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from relaxc.service.runtime.slices import Slices

Array = np.ndarray[Any, Any]
SHAPE = (1, 24, 12, 12)
CHANNEL = 7


def scattered(seed: int, scatter: float) -> Array:
    """The same values with errors of their own; channels are of sizes up to ten times each other's."""
    values = np.random.default_rng(0).standard_normal(SHAPE) * np.geomspace(0.3, 3, SHAPE[1])[:, None, None]
    noise = np.random.default_rng(seed).standard_normal(SHAPE) * np.geomspace(0.3, 3, SHAPE[1])[:, None, None]
    return (values + scatter * noise).astype("float32")


def worst(got: Array, scatter: float, draws: int = 1) -> tuple[float, str]:
    slices = Slices()
    for _ in range(draws):
        slices.add(got, scattered(1, scatter), [scattered(seed, scatter) for seed in range(2, 6)])
    return slices.worst()


@pytest.mark.parametrize("scatter", [1e-6, 0.01, 0.1])
@pytest.mark.parametrize("seed", range(6, 12))
def test_what_scatters_as_the_reference_does_is_right(scatter: float, seed: int) -> None:
    assert worst(scattered(seed, scatter), scatter)[0] < 0.9


def swapped(got: Array) -> Array:
    return got[:, [1, 0, *range(2, SHAPE[1])]]


def of_one(factor: float = 1.0, offset: float = 0.0) -> Any:
    def fault(got: Array) -> Array:
        found = got.copy()
        found[:, CHANNEL] = found[:, CHANNEL] * factor + offset
        return found

    return fault


FAULTS = {
    "zero": (of_one(0.0), "slice 7 of axis 1"),
    "twice": (of_one(2.0), "slice 7 of axis 1"),
    "a tenth more": (of_one(1.1), "slice 7 of axis 1"),
    "an offset": (of_one(offset=0.05), "slice 7 of axis 1 .*bias"),
    "two swapped": (swapped, "slice [01] of axis 1"),
    "all a twentieth more": (lambda got: got * 1.05, "(all of it|slice .*) .*gain"),
    "a row of zeros": (lambda got: got * (np.arange(12) != 5)[:, None], "slice 5 of axis 2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_slice_that_is_wrong_is_found_and_named(fault: str) -> None:
    change, said = FAULTS[fault]
    error, reason = worst(change(scattered(6, 0.05)), 0.05)
    assert error > 1 and re.search(said, reason), reason


def test_one_channel_in_four_hundred_is_found_in_an_output_that_scatters_by_a_twentieth() -> None:
    """As a root mean square over the output it is within that."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((32, 400))
    want, got, *runs = ((values + 0.05 * rng.standard_normal(values.shape)).astype("float32") for _ in range(6))
    got[:, 123] = 0
    assert np.sqrt(np.mean(np.square(got - want))) < 0.1
    slices = Slices()
    slices.add(got, want, runs)
    error, reason = slices.worst()
    assert error > 5 and "slice 123 of axis 1" in reason


def test_one_element_a_step_off_is_no_fault() -> None:
    """The last rounding moved others in the runs."""
    rng = np.random.default_rng(0)
    want = rng.integers(0, 256, (64, 32)).astype("uint8")

    def stepped(seed: int, count: int) -> Array:
        found = want.copy()
        places = np.random.default_rng(seed).integers(0, want.size, count)
        found.reshape(-1)[places] ^= 1
        return found

    slices = Slices()
    slices.add(stepped(9, 3), want, [stepped(seed, 20) for seed in range(4)])
    assert slices.worst()[0] < 1


def test_draws_add_up_to_what_one_does_not_show() -> None:
    """An offset that is as large as the scatter."""
    got = of_one(offset=0.1)
    errors = []
    for draws in (1, 24):
        slices = Slices()
        for draw in range(draws):
            runs = [scattered(100 * draw + seed, 0.1)[:, :, :2, :2] for seed in range(1, 7)]
            slices.add(got(runs[5]), runs[0], runs[1:5])
        errors.append(slices.worst()[0])
    assert errors[0] < 1 < errors[1], errors


def test_what_is_not_finite_or_a_filler_has_no_part_in_it() -> None:
    want = scattered(1, 0.01)
    for filler in (np.inf, np.nan, np.float32(-3.4e38)):
        arrays = [scattered(seed, 0.01) for seed in range(1, 7)]
        for array in arrays:
            array[0, 3, 2] = filler
        want, got, *runs = arrays
        slices = Slices()
        slices.add(got, want, runs)
        assert slices.worst()[0] < 0.9
    assert Slices().worst() == (0.0, "")
