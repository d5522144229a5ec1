"""Times the best kernels of both tuners in turns, by one timer in one process.

python -m benchmarks.tuning.duel OURS.json UPSTREAM.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from benchmarks.tuning.curve import Curve, read_curve
from relaxc.service.runtime.threads import default_threads, use_threads

__all__ = ["duel"]

_ROUNDS = 41
_SAMPLE_S = 2e-3
"""A sample is of so many calls that the clock does not count."""


def duel(curves: list[Curve]) -> dict[str, float]:
    """The median milliseconds of each curve's kernel, by tuner; each round has a sample of all, in a changing order."""
    use_threads(default_threads())
    calls = {curve.tuner: _Call(curve) for curve in curves}
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(_ROUNDS):
        for name in names if turn % 2 else reversed(names):
            times[name].append(calls[name].sample_ms())
    return {name: median(found) for name, found in times.items()}


class _Call:
    """A kernel with arguments of its own."""

    def __init__(self, curve: Curve) -> None:
        rng = np.random.default_rng(0)
        self._kernel: Any = tvm_ffi.load_module(curve.library)[curve.symbol]
        self._arguments = [tvm.runtime.tensor(rng.standard_normal(shape, dtype=np.float32)) for shape in curve.shapes]
        self._repeat = 1
        self.sample_ms()
        self._repeat = max(1, round(_SAMPLE_S * 1e3 / self.sample_ms()))

    def sample_ms(self) -> float:
        """Milliseconds of one call, of a sample."""
        start = time.perf_counter()
        for _ in range(self._repeat):
            self._kernel(*self._arguments)
        return (time.perf_counter() - start) / self._repeat * 1e3


def main() -> None:
    """Runs the command line: prints a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("curves", type=Path, nargs="+")
    print(json.dumps(duel([read_curve(path) for path in parser.parse_args().curves])))


if __name__ == "__main__":
    main()
