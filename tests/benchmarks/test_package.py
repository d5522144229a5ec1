"""The comparison of a package's program with the Python runtime, on a small package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.package import SIDES, compare
from tests.packaging.conftest import package
from tests.runtime.conftest import artifact, linear

__all__ = ["artifact", "linear", "package"]


@pytest.mark.slow
def test_both_run_the_same_and_are_compared(package: Path, tmp_path: Path) -> None:
    arrays = {"x": np.ones((3, 64), np.float32), "ids": np.arange(3)}
    inputs = {name: tmp_path / f"{name}.npy" for name in arrays}
    for name, array in arrays.items():
        np.save(inputs[name], array)
    found = compare(package, inputs, tmp_path / "out", rounds=2, runs=3, threads=1)
    assert found["equal"]
    assert len(found["ratios"]) == 2
    assert all(found[name][side] > 0 for name in ("median_s", "load_s", "first_result_s") for side in SIDES)
