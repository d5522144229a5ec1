"""Waiting for what others do. Times decide no test: a slow or loaded machine only takes longer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil

__all__ = ["PATIENCE_S", "gone", "until"]

PATIENCE_S = 240.0
"""How long anything may take before it counts as hanging; shorter than the ten minutes that a job of ours sleeps."""


def until(condition: Callable[[], object], within_s: float = PATIENCE_S, pause_s: float = 0.02) -> None:
    """Returns once it holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {within_s:.0f} s"
        time.sleep(pause_s)


def gone(processes: Iterable[psutil.Process]) -> bool:
    """Whether none of them runs any more, waiting for their end; one that nobody has reaped yet does not run."""
    waited_for, deadline = list(processes), time.monotonic() + PATIENCE_S
    while any(_runs(each) for each in waited_for):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
