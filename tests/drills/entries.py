"""What the jobs of a drill do, by the seed of their options: `seed % 10` says what, the rest makes requests differ."""

from __future__ import annotations

import subprocess
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

from relaxc.service.process.task import Emit
from relaxc.service.tuning.told import KNOWN, TRIAL, read_lines
from tests.jobs.durable_entries import trial_of
from tests.jobs.entries import made, refuse, segfault

__all__ = ["TRIALS", "Act", "by_seed", "tune"]

TRIALS = 12
_TRIAL_S = 0.15


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
    from relaxc.service.jobs.entries import compile_model

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


def tune(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Does the trials that no earlier claim has told; fails where what they told is no beginning."""
    told_before = read_lines((workdir / KNOWN).read_text())
    known = [told.value["point"]["rows"] for told in told_before if told.kind == TRIAL]
    if known != list(range(len(known))):
        raise AssertionError(f"the trials that are known are {known}")
    for number in range(len(known), TRIALS):
        time.sleep(_TRIAL_S)
        for told in trial_of(number):
            emit({"event": "trial", **told.to_dict()})
    emit({"event": "result", "files": [], "summary": {"known": len(known), "trials": TRIALS}})
