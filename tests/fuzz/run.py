"""Cases of a seed by the thousand, on several processes; each result at once in a journal, from which a run goes on."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.check import BAD
from tests.fuzz.child import WORKER, Child
from tests.fuzz.findings import Known, error_head, signature, snippet
from tests.fuzz.shrink import shrink

__all__ = ["JOURNAL", "Plan", "fuzz", "read"]

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Plan:
    """Which cases of which seed, for how long, on how many processes; `folder` has the journal and the findings."""

    folder: Path
    seed: str
    count: int
    limit_s: float = 1e9
    workers: int = 2
    shrink_s: float = 60.0
    known: Known = field(default_factory=Known.read)
    command: Sequence[str] = WORKER


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a journal; a line that was cut off is left out."""
    path, rows = folder / JOURNAL, []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def fuzz(plan: Plan) -> list[dict[str, Any]]:
    """Check what the journal lacks of the plan, as far as its time goes; return all rows of its seed."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    done = {row["index"] for row in read(plan.folder) if row["seed"] == plan.seed}
    waiting = iter([index for index in range(plan.count) if index not in done])
    run = _Run(plan, waiting)
    threads = [threading.Thread(target=run.work, args=(number,)) for number in range(plan.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [row for row in read(plan.folder) if row["seed"] == plan.seed]


class _Run:
    def __init__(self, plan: Plan, waiting: Iterator[int]) -> None:
        self.plan, self.waiting = plan, waiting
        self.end = time.monotonic() + plan.limit_s
        self.guard = threading.Lock()
        self.heads = {_head(row) for row in read(plan.folder)}
        self.without: Sequence[str] = sorted(plan.known.operators)

    def work(self, number: int) -> None:
        """Check one case after another with a process of its own."""
        child = Child(self.plan.folder / f"worker{number}", self.plan.command)
        try:
            while (index := self._next()) is not None:
                folder = child.folder / "case"
                shutil.rmtree(folder, ignore_errors=True)
                asked = {"seed": self.plan.seed, "index": index, "folder": str(folder), "without": self.without}
                row = {"seed": self.plan.seed, "index": index, **child.ask(asked)}
                if row["kind"] in BAD:
                    row |= self._found(row, folder, child)
                self._write(row)
        finally:
            child.close()

    def _next(self) -> int | None:
        with self.guard:
            return next(self.waiting, None) if time.monotonic() < self.end else None

    def _found(self, row: dict[str, Any], folder: Path, child: Child) -> dict[str, Any]:
        """Shrink a finding; an error that was seen before is only counted."""
        with self.guard:
            is_seen = _head(row) in self.heads and row["kind"] == "unnamed"
            self.heads.add(_head(row))
        case = Case.load(folder)
        if is_seen:
            return {"signature": signature(case, row)}
        tried = child.folder / "tried"

        def ask(smaller: Case) -> dict[str, Any]:
            shutil.rmtree(tried, ignore_errors=True)
            smaller.save(tried)
            return child.ask({"folder": str(tried)})

        left = min(self.plan.shrink_s, max(10.0, self.end - time.monotonic()))
        case = shrink(case, row, ask, limit_s=left)
        said = ask(case)
        kept = self.plan.folder / "findings" / f"{row['kind']}-{self.plan.seed}-{row['index']}"
        case.save(kept)
        row = {**row, "said": said.get("said", "")} if said["kind"] == row["kind"] else row
        (kept / "show.py").write_text(snippet(case, row))
        return {"signature": signature(case, row), "kept": str(kept), "shrunk": len(case.nodes), "said": row["said"]}

    def _write(self, row: dict[str, Any]) -> None:
        with self.guard, (self.plan.folder / JOURNAL).open("a") as file:
            file.write("\n" + json.dumps(row))  # first ends a line that was cut off
            file.flush()
            os.fsync(file.fileno())
        if row["kind"] in BAD and not self.plan.known.has(row.get("signature")) and "kept" in row:
            print(f"{row['index']}: {row['signature']}\n    {row['said'][:300]}\n    {row['kept']}/show.py", flush=True)


def _head(row: dict[str, Any]) -> str:
    return f"{row['kind']} {error_head(row)}"
