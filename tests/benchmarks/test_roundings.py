"""Each quantization is exact beside float64, and a fault in one is found where it is, of which outputs tell nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.roundings import BOUNDARY, Exact, Off, codes_of, exposed, ours
from tests.test_compiler_quantized import OF_A_CHANNEL, ZERO, residuals, with_a_channel

FAULTS: dict[str, Any] = {
    "a zero point": {"zero": ZERO + 1},
    "two scales swapped": {"swapped": True},
    "a saturation missed": {"wraps": True},
}


def off(model: Any, folder: Path) -> dict[str, Off]:
    """By how much the codes are off that a model makes, beside the right one."""
    right = residuals()
    inputs = {"x": np.random.default_rng(2).standard_normal((32, 96)).astype("float32") * 4}
    made = ours(exposed(model, codes_of(right), folder / "exposed.onnx"), inputs)
    return Exact(right).run(inputs, made)[1]


def test_each_quantization_is_exact(tmp_path: Path) -> None:
    found = off(residuals(), tmp_path)
    assert len(found) == len(codes_of(residuals()))
    assert max(each.furthest for each in found.values()) < BOUNDARY and sum(each.off for each in found.values()) < 3


@pytest.mark.parametrize("fault", [*FAULTS, *(f"a channel is {fault}" for fault in OF_A_CHANNEL)])
def test_a_fault_is_found_in_the_first_quantization_that_it_reaches(fault: str, tmp_path: Path) -> None:
    channel = fault.removeprefix("a channel is ")
    wrong = residuals(**FAULTS[fault]) if fault in FAULTS else with_a_channel(residuals(), "p4", channel)
    found = off(wrong, tmp_path)
    wide = [name for name, each in found.items() if each.furthest > BOUNDARY or each.steps > 1]
    assert wide == ["y3q" if "saturation" in fault else "y4q"]
