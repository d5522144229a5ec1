"""Two loops of a runner's own: one that takes the private caches away from a candidate, one that listens for noise."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tvm

from relaxc.service import machine
from relaxc.service.runtime import probes
from relaxc.service.runtime.peak import vectors
from relaxc.service.tuning.measure.timing import Timing, summary

__all__ = ["Probe"]

_FMAS = 200_000
"""Multiply-adds of each of the 12 chains: about half a millisecond."""
_WARM_UP_RUNS, _LISTEN_RUNS = 3, 15
_COPIES = 4
_USUAL_L2_BYTES = 2 << 20


class Probe:
    """Compiled once a process, for `threads` threads that have their pool already (`use_threads`)."""

    def __init__(self, threads: int) -> None:
        lanes, target = vectors()
        row = threads * probes.CHAINS * lanes
        private = max((c.size_bytes for c in machine.caches() if c.cores == 1), default=_USUAL_L2_BYTES)
        steps = max(1, threads * private // (4 * row))
        functions = {
            "fma": probes.fma(threads, lanes, _FMAS),
            "copy": probes.copy(threads, lanes, steps, 1),
        }
        library = probes.build(functions, target)
        self._fma, self._copy = library["fma"], library["copy"]
        self._scale, self._sums = _zeros(lanes), _zeros(row)
        self._from, self._to = _zeros(steps * row), _zeros(steps * row)

    def flush(self) -> None:
        """Read and write twice the private caches of every core that a candidate runs on.

        So its operands come from the shared cache or from memory, as in a model; which of the two its weights come
        from is for `WeightCopies` to repeat.
        """
        self._copy(self._from, self._to)

    def spin(self, seconds: float) -> None:
        """Keep every core busy with arithmetic for at least so long."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._fma(self._scale, self._sums)

    def listen(self) -> Timing:
        """Return the time of arithmetic and of copying together, which is the same whenever the machine is quiet.

        The spread is that of the middle half: one interruption is no noisy machine.
        """
        for _ in range(_WARM_UP_RUNS):
            self._reference()
        return summary([self._reference() for _ in range(_LISTEN_RUNS)], tail=0.25)

    def _reference(self) -> float:
        start = time.perf_counter()
        self._fma(self._scale, self._sums)
        for _ in range(_COPIES):
            self._copy(self._from, self._to)
        return time.perf_counter() - start


def _zeros(count: int) -> Any:
    return tvm.runtime.tensor(np.zeros(count, np.float32))
