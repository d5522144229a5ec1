"""What the jobs of a drill do, by the seed of their options: `seed % 10` says what, the rest makes requests differ."""

from __future__ import annotations

import subprocess
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

from service.process.task import Emit
from tests.jobs.entries import made, refuse, segfault

__all__ = ["Act", "by_seed"]


class Act(IntEnum):
    """What a job does."""

    MADE = 0
    COMPILE = 1
    SPRAWL = 2
    REFUSE = 3
    CRASH = 4

    def seed(self, number: int) -> int:
        """The seed of the `number`-th such job."""
        return number * 10 + self


def by_seed(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """One of these."""
    from service.jobs.entries import compile_model

    acts = {Act.MADE: made, Act.COMPILE: compile_model, Act.SPRAWL: sprawl, Act.REFUSE: refuse, Act.CRASH: segfault}
    acts[Act(payload["request"]["options"]["seed"] % 10)](payload, workdir, emit)


def sprawl(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Writes files, leaves processes behind, one of them in a session of its own, and then does as it should."""
    emit({"event": "stage", "stage": "lower", "state": "start"})
    for i in range(20):
        (workdir / "tmp" / f"half-{i}").write_bytes(bytes(100_000))
    subprocess.Popen(["sleep", "900"])
    subprocess.Popen(["sleep", "901"], start_new_session=True)
    time.sleep(0.7)
    made(payload, workdir, emit)
