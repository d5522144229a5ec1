"""The measure half: entries in order of importance, each in a child with a limit; what is measured is written at once.

Several children prepare at a time (weights, references, torch.compile); while one is timed, the others are stopped.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.manifest import RESULTS, Entry, left, read_manifest, read_results
from benchmarks.gpu.processes import Child, signal_all

__all__ = ["CHILD", "measure"]

CHILD = (sys.executable, "-m", "benchmarks.gpu.child")
_START_S = 90.0
"""What a child may take to import torch and to start CUDA, beside its entry's limit."""
_WHOLE = ("model", "threads", "drawn")
"""Suites each of whose entries has a child of its own: a model's memory goes with its process."""
_SETTLE_S = 0.15
"""How long the GPU may still work for those that were stopped."""


def measure(
    folder: Path,
    out: Path,
    *,
    budget_s: float = 560.0,
    workers: int = 4,
    only: str = "",
    retry: bool = False,
    child: Sequence[str] = CHILD,
) -> list[dict[str, Any]]:
    """Measure what the folder's and `out`'s results lack, as far as the time goes; return the new rows.

    `only` is the beginning of the ids that are wanted. A second call with the first one's results in either folder
    goes on where it stopped.
    """
    out.mkdir(parents=True, exist_ok=True)
    _, entries = read_manifest(folder)
    waiting = [each for each in left(entries, read_results(folder, out), retry=retry) if each.id.startswith(only)]
    run = _Run(folder, out / RESULTS, waiting, time.monotonic() + budget_s, child)
    threads = [threading.Thread(target=run.work, daemon=True) for _ in range(max(1, min(workers, len(waiting))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return run.rows


class _Run:
    """What the workers share: the entries that wait, the children there are, the turn to be timed, and the rows."""

    def __init__(
        self, folder: Path, results: Path, waiting: list[Entry], deadline: float, child: Sequence[str]
    ) -> None:
        self.folder, self.results, self.deadline, self.command = folder, results, deadline, [*child, str(folder)]
        self.waiting: list[Entry] = list(waiting)
        self.rows: list[dict[str, Any]] = []
        self.children: set[Child] = set()
        self.turn, self.guard = threading.Lock(), threading.Lock()
        self.stopped_s = 0.0
        """Seconds for which somebody had the machine alone: they do not count for the others' limits."""
        self.device = ""

    def work(self) -> None:
        """Take one entry after the other until none is left or the time is over."""
        child: Child | None = None
        while (entry := self._next()) is not None:
            if entry.suite == "sanitizer":
                self._write(self._sanitized(entry))
                continue
            if child is None or entry.suite in _WHOLE:
                self._close(child)
                child = self._open(self.command)
            row = self._measured(child, entry)
            self._write(row)
            if row["status"] != "done" or entry.suite in _WHOLE:
                self._close(child)
                child = None
        self._close(child)

    def _next(self) -> Entry | None:
        with self.guard:
            return self.waiting.pop(0) if self.waiting and time.monotonic() < self.deadline else None

    def _open(self, command: Sequence[str]) -> Child:
        with self.turn:  # nothing starts while somebody is timed
            child = Child(command)
            self.children.add(child)
        return child

    def _close(self, child: Child | None) -> None:
        if child is not None:
            self.children.discard(child)
            child.end()

    def _measured(self, child: Child, entry: Entry) -> dict[str, Any]:
        """The entry's row: what the child says in the end, or why it says nothing."""
        child.send(json.dumps(asdict(entry)))
        found: dict[str, Any] = {}
        with ExitStack() as alone:
            clock = self._clock(entry.limit_s + _START_S)
            while True:
                late = clock()
                if late:
                    return {"id": entry.id, **found, **late}
                try:
                    row = child.rows.get(timeout=0.2)
                except queue.Empty:
                    continue
                if row is None:
                    died = f"it died: {child.last_words()}"
                    if not child.ready:  # nothing can be measured here: what waits is left for another call
                        self.waiting.clear()
                    return {"id": entry.id, **found, "status": "failed" if child.ready else "cut", "failed": died}
                if "ready" in row:
                    child.ready = True
                    self._name(row.get("device", ""))
                elif row.get("turn"):
                    found |= row["found"]
                    self._write({"id": entry.id, "status": "cut", **found})
                    alone.enter_context(self._alone(child))
                    clock = self._clock(entry.limit_s)
                    child.send("go")
                elif "status" in row:
                    return {**found, **row}
                else:
                    alone.close()

    def _clock(self, limit_s: float) -> Callable[[], dict[str, Any]]:
        """What a row gets where the limit, or the time of the whole run, is over; nothing before."""
        start, stopped = time.monotonic(), self.stopped_s

        def late() -> dict[str, Any]:
            now = time.monotonic()
            if now >= self.deadline:
                return {"status": "cut"}
            took = now - start - (self.stopped_s - stopped)
            return {"status": "failed", "failed": f"it took more than {limit_s:.0f} s"} if took > limit_s else {}

        return late

    @contextmanager
    def _alone(self, child: Child) -> Any:
        """Have the others stopped."""
        with self.turn:
            others = [each.process.pid for each in self.children if each is not child]
            signal_all(others, signal.SIGSTOP)
            start = time.monotonic()
            try:
                time.sleep(_SETTLE_S if others else 0)
                yield
            finally:
                self.stopped_s += time.monotonic() - start
                signal_all(others, signal.SIGCONT)

    def _name(self, device: str) -> None:
        with self.guard:
            known, self.device = self.device, device
        if device and not known:
            self._write({"id": "device", "status": "done", "device": device})

    def _sanitized(self, entry: Entry) -> dict[str, Any]:
        """The tool's verdict on the entry's kernels, from how it exits."""
        tool = ["compute-sanitizer", "--tool", entry.case["tool"], "--error-exitcode", "9"]
        found: dict[str, Any] = {"id": entry.id, "checked": 0, "wrong": []}
        if shutil.which(tool[0]) is None:
            return {**found, "status": "failed", "failed": f"there is no {tool[0]}"}
        child = self._open([*tool, *self.command, "check", *entry.case["ids"]])
        clock = self._clock(entry.limit_s)
        try:
            while not (late := clock()):
                try:
                    row = child.rows.get(timeout=0.2)
                except queue.Empty:
                    continue
                if row is None:
                    code = child.process.wait()
                    clean = code == 0 and not found["wrong"] and found["checked"] == len(entry.case["ids"])
                    said = "" if clean else child.last_words()
                    return {**found, "status": "done", "right": clean, "exit": code, "said": said}
                found["checked"] += 1
                found["wrong"] += [] if row["right"] else [row["id"]]
            return {**found, **late}
        finally:
            self._close(child)

    def _write(self, row: dict[str, Any]) -> None:
        """Add a row to the file, so that it stays whatever becomes of this process."""
        row = {**row, "date": datetime.now(UTC).isoformat(timespec="seconds")}
        with self.guard:
            self.rows.append(row)
            with self.results.open("a") as file:
                file.write("\n" + json.dumps(row) + "\n")  # first ends a line that was cut off
                file.flush()
                os.fsync(file.fileno())
        shown = {name: row[name] for name in ("status", "right", "ratio", "ms", "us", "failed") if name in row}
        print(row["id"], json.dumps(shown)[:300], flush=True)
