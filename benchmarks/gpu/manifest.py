"""The manifest of a bundle, and the results that measuring it leaves: both outlive the machine that wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["MANIFEST", "RESULTS", "Entry", "finished", "left", "read_manifest", "read_results", "write_manifest"]

MANIFEST, RESULTS = "manifest.json", "results.jsonl"


@dataclass(frozen=True)
class Entry:
    """One thing to measure: `suite` says how, `case` what, `files` are its parts in the bundle.

    `limit_s` is what it may take, not counting the time for which it is stopped. Those with a smaller `rank` go first.
    """

    id: str
    suite: str
    case: dict[str, Any]
    files: list[str] = field(default_factory=list)
    limit_s: float = 60.0
    rank: int = 0
    made: dict[str, Any] = field(default_factory=dict)
    """What building it said: seconds, parameters, kernels that no template took."""


def write_manifest(folder: Path, entries: Iterable[Entry], about: dict[str, Any]) -> None:
    """Write the entries in order of their rank, and what the bundle is of."""
    rows = [asdict(entry) for entry in sorted(entries, key=lambda entry: (entry.rank, entry.id))]
    (folder / MANIFEST).write_text(json.dumps({"about": about, "entries": rows}))


def read_manifest(folder: Path) -> tuple[dict[str, Any], list[Entry]]:
    """Return what the bundle is of, and its entries in order. Raises FileNotFoundError where it has none."""
    found = json.loads((folder / MANIFEST).read_text())
    return found["about"], [Entry(**row) for row in found["entries"]]


def read_results(*folders: Path) -> list[dict[str, Any]]:
    """Return the rows of every `results*.jsonl` in the folders; a line that was cut off is left out."""
    rows = []
    for folder in folders:
        for path in sorted(folder.glob("results*.jsonl")):
            for line in path.read_text().splitlines():
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    continue
    return rows


def finished(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the last row of each entry that came to an end; `cut` ones did not."""
    return {row["id"]: row for row in rows if row["status"] != "cut"}


def left(entries: Iterable[Entry], rows: Iterable[dict[str, Any]], *, retry: bool = False) -> list[Entry]:
    """Return what is still to measure: what never started first, then what was cut off; with `retry` failures too."""
    rows = list(rows)
    done = {name for name, row in finished(rows).items() if not (retry and row["status"] == "failed")}
    cut = {row["id"] for row in rows if row["status"] == "cut"}
    waiting = [entry for entry in entries if entry.id not in done]
    return sorted(waiting, key=lambda entry: entry.id in cut)
