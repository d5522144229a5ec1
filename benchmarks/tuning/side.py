"""The command line of a tuner that is compared: one case in a process of its own, its curve as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.tuning.cases import CASES, Case
from benchmarks.tuning.curve import Curve

__all__ = ["run_side"]


def run_side(name: str, about: str | None, tune: Callable[[Case, Path, int, int], Curve], *, trials: int) -> None:
    """Runs `tune(case, out, trials, seed)` as asked for; the curve goes to `out`/CASE.NAME.json."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("--trials", type=int, default=trials)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    made = tune(CASES[arguments.case], arguments.out, arguments.trials, arguments.seed)
    made.write(arguments.out / f"{made.case}.{name}.json")
