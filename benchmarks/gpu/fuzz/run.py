"""Random kernels by the thousand: compiled in many processes, checked in others, every result written at once."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.fuzz.draw import draw
from benchmarks.gpu.fuzz.report import is_bad
from benchmarks.gpu.manifest import RESULTS, Entry, finished, read_results
from benchmarks.gpu.processes import Child

__all__ = ["Plan", "fuzz", "write_row"]

COMPILER = (sys.executable, "-m", "benchmarks.gpu.fuzz.compile_child")
CHECKER = (sys.executable, "-m", "benchmarks.gpu.fuzz.check_child")
_START_S = 90.0
"""What a process may take to import its libraries and to start CUDA."""
_BATCH_S, _HUNG_S = 90.0, {"cuda": 10.0, "cpu": 60.0}
"""What a batch may take to compile, and a kernel to run with its reference."""
_TAIL_S = 10.0
"""How long before its end a run starts no more compilations."""


@dataclass(frozen=True)
class Plan:
    """Which cases, where the results go, and with what."""

    folder: Path
    seed: int
    indices: Sequence[int]
    device: str = "cuda"
    budget_s: float = 560.0
    workers: int = 16
    runners: int = 3
    batch: int = 8
    compiler: Sequence[str] = COMPILER
    checker: Sequence[str] = CHECKER


def fuzz(plan: Plan) -> list[dict[str, Any]]:
    """Check what the folder's results lack of the plan, as far as its time goes; return all rows of the plan."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    wanted = {f"{plan.seed}:{index}": index for index in plan.indices}
    done = finished(read_results(plan.folder))
    waiting = [index for name, index in wanted.items() if name not in done]
    if waiting:
        with TemporaryDirectory() as built:
            _Run(plan, Path(built), waiting).run()
    done = finished(read_results(plan.folder))
    return [done[name] for name in wanted if name in done]


def write_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row to the file, so that it stays whatever becomes of this process."""
    with path.open("a") as file:
        file.write("\n" + json.dumps(row) + "\n")  # first ends a line that was cut off
        file.flush()
        os.fsync(file.fileno())


class _Run:
    """Threads with a process each: those that compile give batches to those that check."""

    def __init__(self, plan: Plan, built: Path, waiting: list[int]) -> None:
        self.plan, self.built = plan, built
        self.deadline = time.monotonic() + plan.budget_s
        size = max(1, min(plan.batch, len(waiting) // plan.workers))
        self.batches = [waiting[at : at + size] for at in range(0, len(waiting), size)]
        self.batches.reverse()
        self.ready: queue.Queue[tuple[Entry, bool]] = queue.Queue()
        self.compiled = threading.Event()
        self.guard = threading.Lock()
        self.count = 0

    def run(self) -> None:
        """Compile and check until all is done, or the time is over."""
        compilers = self._started(self._compile, min(self.plan.workers, len(self.batches)))
        checkers = self._started(self._check, self.plan.runners)
        for thread in compilers:
            thread.join()
        self.compiled.set()
        for thread in checkers:
            thread.join()

    def _started(self, target: Any, count: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=target, daemon=True) for _ in range(max(1, count))]
        for thread in threads:
            thread.start()
        return threads

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _next(self) -> tuple[str, list[int]] | None:
        with self.guard:
            if not self.batches or self._left() < min(_TAIL_S, self.plan.budget_s / 10):
                return None
            self.count += 1
            return f"batch{self.count}", self.batches.pop()

    def _compile(self) -> None:
        child: Child | None = None
        while (work := self._next()) is not None:
            fresh = child is None
            child = child or Child([*self.plan.compiler, str(self.built), self.plan.device])
            if not self._is_built(child, *work, _BATCH_S + (_START_S if fresh else 0)):
                child.end()
                child = None
        if child is not None:
            child.end()

    def _is_built(self, child: Child, name: str, batch: list[int], limit_s: float) -> bool:
        """Whether the child has come to the end of the batch; what it has not is tried again, one by one."""
        child.send(json.dumps({"seed": self.plan.seed, "indices": batch, "name": name}))
        missing = {f"{self.plan.seed}:{index}": index for index in batch}
        end = time.monotonic() + limit_s
        why = "it cannot be compiled within its time"
        while time.monotonic() < end and self._left() > 0:
            try:
                row = child.rows.get(timeout=0.2)
            except queue.Empty:
                continue
            if row is None:
                why = f"its compiler died: {child.last_words()}"
                break
            if "done" in row:
                return True
            del missing[row["id"]]
            if "entry" in row:
                self.ready.put((Entry(**row["entry"]), False))
            else:
                self._write({"status": "failed" if "failed" in row else "skipped", **row})
        if self._left() > 0:
            self._again(missing, why, alone=len(batch) == 1)
        return False

    def _again(self, missing: dict[str, int], why: str, *, alone: bool) -> None:
        if alone:
            for name, index in missing.items():
                family = draw(self.plan.seed, index).family
                self._write({"id": name, "status": "failed", "family": family, "failed": why})
            return
        with self.guard:
            self.batches += [[index] for index in missing.values()]

    def _check(self) -> None:
        child: Child | None = None
        while (work := self._next_built()) is not None:
            entry, again = work
            fresh = child is None
            child = child or Child([*self.plan.checker, self.plan.device])
            row = self._checked(child, entry, _HUNG_S[self.plan.device] + (_START_S if fresh else 0))
            if row is not None and "lost" in row and not again:  # was it the kernel, or the machine?
                self.ready.put((entry, True))
            elif row is not None:
                failed = {"failed": row.pop("lost")} if "lost" in row else {}
                self._write({**row, **_said_of(entry, whole=not row.get("right", False)), **failed, "again": again})
            if row is None or row["status"] != "done":
                child.end()
                child = None
        if child is not None:
            child.end()

    def _next_built(self) -> tuple[Entry, bool] | None:
        """What waits to be checked, the time allowing; None where nothing will."""
        while self._left() > 0:
            last = self.compiled.is_set()  # asked before the queue: what is put in between is found
            try:
                return self.ready.get(timeout=0.2)
            except queue.Empty:
                if last:
                    return None
        return None

    def _checked(self, child: Child, entry: Entry, limit_s: float) -> dict[str, Any] | None:
        """The entry's row; with `lost` where the child gave none; None where the run is over."""
        child.send(json.dumps(asdict(entry)))
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self._left() <= 0:
                return None
            try:
                row = child.rows.get(timeout=0.2)
            except queue.Empty:
                continue
            if row is None and not child.ready:  # nothing can be checked here: what waits is left for another call
                print(f"no process that checks can start: {child.last_words()}", flush=True)
                self.deadline = 0.0
                return None
            if row is None:
                return {"id": entry.id, "status": "failed", "lost": f"it died: {child.last_words()}"}
            if "ready" not in row:
                return row
            child.ready = True
        return {"id": entry.id, "status": "failed", "lost": f"it took more than {limit_s:.0f} s"}

    def _write(self, row: dict[str, Any]) -> None:
        with self.guard:
            write_row(self.plan.folder / RESULTS, row)
        if is_bad(row):
            print(json.dumps(row)[:2000], flush=True)


def _said_of(entry: Entry, *, whole: bool) -> dict[str, Any]:
    """What a row says of its kernel; the case itself where it is wrong, since it can be drawn again."""
    said = {name: entry.made[name] for name in ("family", "rule", "template")}
    more = {"parameters": entry.made["parameters"], "target": entry.made.get("target"), "case": entry.case}
    return {**said, **more} if whole else said
