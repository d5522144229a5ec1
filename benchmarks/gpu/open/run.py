"""`python -m benchmarks.gpu open FOLDER --seed 1`: drawn networks, ours beside torch.compile; a run goes on."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.gpu.open.report import report
from benchmarks.gpu.processes import signal_all

__all__ = ["add_arguments", "open_networks", "read_rows"]

_RESULTS = "open.jsonl"
_BATCHES = (1, 8)
_LONGEST_S = 240.0
"""For one network, all that compiles in it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which networks, where the results are, and for how long."""
    parser.add_argument("folder", type=Path, help=f"where {_RESULTS} is, and goes on")
    parser.add_argument("--seed", type=int, action="append", default=[], help="these; 1 to 30 without")
    parser.add_argument("--batch", type=int, action="append", default=[], help="these; 1 and 8 without")
    parser.add_argument("--budget", type=float, default=560.0, help="seconds in all")
    parser.add_argument(
        "--workers", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4), help="networks at a time"
    )
    parser.add_argument("--retry", action="store_true", help="also what failed before")


def open_networks(args: argparse.Namespace) -> int:
    """Measure what the folder's results lack, print the report of all; status 1 where a number is wrong."""
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = read_rows(args.folder)
    done = {(row["seed"], row["batch"]) for row in rows if not (args.retry and "failed" in row)}
    wanted = [(s, b) for s in args.seed or range(1, 31) for b in args.batch or _BATCHES if (s, b) not in done]
    _measure(args.folder, wanted, time.monotonic() + args.budget, args.workers)
    rows = read_rows(args.folder)
    print(report(rows))
    return int(any(not row.get("right", False) for row in rows))


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the last row of each network and batch."""
    path = folder / _RESULTS
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return list({(row["seed"], row["batch"]): row for row in rows}.values())


def _measure(folder: Path, wanted: Sequence[tuple[int, int]], until: float, workers: int) -> None:
    """Start a process for each, some at a time, and none that could not end in time; add its row to the results."""
    writing = Lock()

    def one(which: tuple[int, int]) -> None:
        left = until - time.monotonic()
        row = _row(folder, *which, min(left, _LONGEST_S)) if left > 0 else None
        if row is not None and not (row.get("failed") == "it was cut off" and left < _LONGEST_S):
            with writing, (folder / _RESULTS).open("a") as results:
                results.write(json.dumps(row) + "\n")
            print(_line(row), flush=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, wanted))


def _row(folder: Path, seed: int, batch: int, seconds: float) -> dict[str, Any]:
    """What a process says of one network, or that it failed, with what it had said."""
    command = [sys.executable, "-m", "benchmarks.gpu.open.child", str(seed), str(batch), str(folder / "lock")]
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        said, errors = child.communicate(timeout=seconds)
        failed = f"it died: {errors[-300:]}"
    except subprocess.TimeoutExpired:
        signal_all([child.pid], signal.SIGKILL)
        said, _ = child.communicate()
        failed = "it was cut off"
    rows = _said(said.splitlines())
    last = rows[-1] if rows else {"seed": seed, "batch": batch, "partial": True}
    return {**last, "failed": failed} if last.pop("partial", False) else last


def _said(lines: Iterable[str]) -> list[dict[str, Any]]:
    return [json.loads(line[1:]) for line in lines if line.startswith("@")]


def _line(row: dict[str, Any]) -> str:
    what = row.get("failed") or f"{row['ratio']} of torch, {row['without']:.0%} without a template"
    return f"{row['seed']}:{row['batch']} {row.get('kind', '')} {what}{'' if row.get('right', True) else ' WRONG'}"
