"""Measurement of candidates: warm builders, an isolated runner, and a verdict for every point.

with Measurer(spec, threads=2, builders=2) as measurer:
    outcomes = measurer.measure(task, points)               # in order; trials that crash or hang are outcomes too
    *best, default = measurer.compare(task, few, rounds=9)  # interleaved; the last is the task's default
"""

from __future__ import annotations

from relaxc.service.tuning.measure.measurer import Measurer
from relaxc.service.tuning.measure.outcome import GPU_LIMITS, MeasureLimits, Noise, Outcome, RpcOptions

__all__ = ["GPU_LIMITS", "MeasureLimits", "Measurer", "Noise", "Outcome", "RpcOptions"]
