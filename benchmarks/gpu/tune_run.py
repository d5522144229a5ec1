"""Tunes carried tasks on a GPU machine within a time, times what won again, and keeps what that confirms."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from math import hypot
from pathlib import Path
from typing import Any

from benchmarks.gpu.tune_tasks import Wanted, read_tasks
from relaxc.service.lowering.target import resolve
from relaxc.service.records.files import append
from relaxc.service.request import CompileOptions, CompileRequest, ModelFormat, ModelRef
from relaxc.service.tuning.measure import GPU_LIMITS, Measurer, Outcome
from relaxc.service.tuning.options import TuneOptions
from relaxc.service.tuning.run import Candidate
from relaxc.service.tuning.session import Session
from relaxc.service.tuning.tasks import FoundTasks
from relaxc.service.tuning.verdict import LEAST_GAIN

__all__ = ["confirmed", "tune"]

_ROUNDS = 101
_CONFIRM_SHARE = 0.2
"""Of the time, for the second timing."""
_END_S = 30.0


def tune(folder: Path, out: Path, *, budget_s: float, processes: int, trials: int) -> int:
    """Share the tasks among processes, each with cores of its own; they take turns on the GPU. Return the status."""
    out.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    running = []
    for index in range(processes):
        own = ",".join(map(str, cores[index::processes]))
        arguments = [str(folder), str(out), str(index), str(processes), str(budget_s), str(trials), own]
        running.append(subprocess.Popen([sys.executable, "-m", "benchmarks.gpu.tune_run", *arguments]))
    end = time.monotonic() + budget_s + _END_S
    status = 0
    for process in running:
        try:
            status |= process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            status = 1
    return int(status != 0)


def confirmed(best: Outcome, untuned: Outcome) -> bool:
    """Return whether a second timing in turns shows a gain of over three standard errors of the difference.

    Single turns of large products spread by a tenth, with the clock that the power leaves, which is the same for both.
    """
    if best.seconds is None or untuned.seconds is None:
        return False
    return best.seconds < untuned.seconds * (1 - max(LEAST_GAIN, 3 * hypot(best.error, untuned.error)))


class _Share:
    """What one process does."""

    def __init__(self, folder: Path, out: Path, index: int, count: int, budget_s: float, trials: int) -> None:
        self.began = time.monotonic()
        self.out, self.index, self.budget_s, self.trials = out, index, budget_s, trials
        self.known = folder / "records"
        self.wanted = read_tasks(folder)[index::count]
        self.spec = resolve("cuda")
        self.log = (out / f"log_{index}.jsonl").open("a")

    def run(self) -> None:
        """Tune, then confirm what won; each row is on the disk before the next begins."""
        tasks = tuple(one.task for one in self.wanted)
        digest = hashlib.sha256("".join(task.workload for task in tasks).encode()).hexdigest()
        model = ModelRef(ModelFormat.PT2, digest, 0, Path("tasks"))
        request = CompileRequest(model, self.spec, CompileOptions())
        left = self.budget_s * (1 - _CONFIRM_SHARE) - (time.monotonic() - self.began)
        into = self.out / f"records_{self.index}"
        known = (str(self.known),) if self.known.exists() else ()
        options = TuneOptions(trials=self.trials, time_s=max(10.0, left), into=str(into), resume=True, records=known)
        work = Path(f"/tmp/relaxc-tune-{self.index}")
        work.mkdir(exist_ok=True)
        session = Session(request, options, FoundTasks(tasks, (), {}), None, work, self._say)
        candidates, report = session.tune()
        self._write(kind="run", trials=report["trials"], seconds=report["seconds"], pace=report["trials_per_minute"])
        for candidate, wanted in zip(candidates, self._searched(candidates), strict=True):
            self._write(kind="task", **_row(candidate, wanted))
        self._confirm(session, [one for one in candidates if _is_won(one)])

    def _searched(self, candidates: Sequence[Candidate]) -> list[Wanted]:
        by_workload = {(one.task.workload, one.task.shapes): one for one in self.wanted}
        return [by_workload[one.task.workload, one.task.shapes] for one in candidates]

    def _confirm(self, session: Session, won: list[Candidate]) -> None:
        won = sorted(won, key=lambda one: -one.task.weight * _gain_s(one))
        with Measurer(self.spec, threads=1, builders=len(os.sched_getaffinity(0)), limits=GPU_LIMITS) as measurer:
            measurer.build_ahead([(one.task, point) for one in won for point in _points(one)])
            for one in won:
                if time.monotonic() - self.began > self.budget_s:
                    self._write(kind="cut", name=one.task.name, workload=one.task.workload)
                    continue
                assert one.verdict is not None
                best, untuned = measurer.compare(one.task, [one.verdict.point], _ROUNDS)
                is_confirmed = confirmed(best, untuned)
                self._write(
                    kind="confirm", name=one.task.name, workload=one.task.workload, shapes=one.task.shapes,
                    confirmed=is_confirmed, best=asdict(best), untuned=asdict(untuned),
                )  # fmt: skip
                if is_confirmed:
                    append(self.out / f"confirmed_{self.index}", [session.provenance.record(one)])

    def _say(self, event: dict[str, Any]) -> None:
        if event["event"] == "metric" and event["best_s"]:
            untuned = event["untuned_s"] or event["best_s"]
            times = f"{untuned * 1e6:.2f} -> {event['best_s'] * 1e6:.2f} us"
            done = f" ({event['done']})" if event["done"] else ""
            print(f"{self.index}: {event['name']}: {event['trials']} trials, {event['failed']} failed, {times}{done}")
        elif event["event"] == "log":
            print(f"{self.index}: {event['message']}")
        sys.stdout.flush()

    def _write(self, **row: Any) -> None:
        self.log.write(json.dumps(row) + "\n")
        self.log.flush()


def _row(candidate: Candidate, wanted: Wanted) -> dict[str, Any]:
    from relaxc.service.tuning.summary import row_of

    row = row_of(candidate)
    times = {f"{name}_us": row[f"{name}_s"] and round(row[f"{name}_s"] * 1e6, 3) for name in ("untuned", "best")}
    kept = ("name", "workload", "rule", "shapes", "dtype", "points", "trials", "failed", "done", "default", "point")
    return {**{name: row[name] for name in kept}, **times, "gain": row["gain"], "models": dict(wanted.shares)}


def _is_won(candidate: Candidate) -> bool:
    verdict = candidate.verdict
    return verdict is not None and dict(verdict.point) != dict(candidate.task.default)


def _gain_s(candidate: Candidate) -> float:
    verdict = candidate.verdict
    return 0.0 if verdict is None else verdict.untuned_s - verdict.seconds


def _points(candidate: Candidate) -> list[dict[str, int]]:
    assert candidate.verdict is not None
    return [dict(candidate.verdict.point), dict(candidate.task.default)]


if __name__ == "__main__":
    os.sched_setaffinity(0, set(map(int, sys.argv[7].split(","))))
    _Share(
        Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])
    ).run()
