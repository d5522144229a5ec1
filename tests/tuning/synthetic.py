"""A task whose times are a formula, and a measurer that knows it: searches and plans without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log2
from typing import Any

from relaxc.service.request import TargetSpec
from relaxc.service.tuning.measure.outcome import Noise, Outcome
from relaxc.service.tuning.task import Task

CHOICES = {
    "rows": tuple(range(1, 15)),
    "vectors": (1, 2, 3, 4),
    "tiles": (1, 2, 4, 8, 16, 32, 64, 128),
    "depth": (128, 192, 256, 384, 768),
    "unroll": (1, 2, 4, 8),
    "panels": (1, 2, 3, 4, 6, 8, 12),
}
DEFAULT = {"rows": 7, "vectors": 2, "tiles": 4, "depth": 768, "unroll": 2, "panels": 1}
BEST = {"rows": 10, "vectors": 3, "tiles": 16, "depth": 384, "unroll": 4, "panels": 3}


def seconds_of(point: Mapping[str, int]) -> float:
    """A register tile that fits 32 registers and is as large as it can be, and a best value for each of the others."""
    area = point["rows"] * point["vectors"]
    spilled = max(0, area + point["vectors"] + 1 - 34)
    away = {"tiles": 0.05, "unroll": 0.03, "depth": 0.1, "panels": 0.04}
    cost = (1 + 0.1 * spilled) * (1 + 2.0 / area)
    for name, weight in away.items():
        cost *= 1 + weight * abs(log2(point[name] / BEST[name]))
    return 1e-3 * cost


def task(name: str = "task", *, weight: int = 1, **changed: Any) -> Task:
    """A task of the synthetic template."""
    fields = {
        "workload": f"{sum(map(ord, name)):016x}",
        "name": name,
        "func_json": "",
        "target": TargetSpec("x86-64-v3", "llvm"),
        "dtype": "float32",
        "rule": "synthetic",
        "version": 1,
        "default": DEFAULT,
        "space": CHOICES,
        "flops": 1e8,
        "bytes": 1e6,
        "weight": weight,
        "shapes": "128x768 768x3072",
    }
    return Task(**{**fields, **changed})


class FakeMeasurer:
    """Times by a formula, its own for each task if `times` has one; counts what it was asked for."""

    def __init__(self, times: Mapping[str, Callable[[Mapping[str, int]], float | None]] | None = None) -> None:
        self.noise = Noise()
        self.times = times or {}
        self.measured: list[tuple[str, dict[str, int]]] = []
        self.compared: list[tuple[str, int]] = []

    def measure(
        self, task: Task, points: Sequence[Any], ended: Callable[[Outcome], None] = lambda outcome: None
    ) -> list[Outcome]:
        outcomes = []
        for point in points:
            self.measured.append((task.name, dict(point)))
            outcomes.append(self._outcome(task, point))
            ended(outcomes[-1])
        return outcomes

    def compare(self, task: Task, points: Sequence[Any], rounds: int) -> list[Outcome]:
        self.compared.append((task.name, len(points)))
        return [self._outcome(task, point) for point in [*points, task.default]]

    def _outcome(self, task: Task, point: Mapping[str, int]) -> Outcome:
        seconds = self.times.get(task.name, seconds_of)(point)
        if seconds is None:
            return Outcome(dict(point), "crashed", detail="it died")
        return Outcome(dict(point), "measured", seconds, spread=0.01, runs=20)
