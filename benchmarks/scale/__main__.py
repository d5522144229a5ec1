"""Jobs and trials a minute against workers: measured with a few here, and by a model with 10, 100 and 1,000.

    python -m benchmarks.scale [--seconds 10] [--json]

The workers are stand-ins without a compiler: each claims a job of a real PostgreSQL (as tests/postgres.py starts it,
without fsync), waits for as long as the job would compute, writes the transactions that a job writes, and ends it. So
what is measured is what all workers share. A job's own time is a parameter: on a worker's own machine it takes none of
that.

The model is a closed queueing network (benchmarks/scale/model.py) whose demands are measured with few workers: the lock
under which a claim is chosen, one at a time; PostgreSQL's processors; and where workers idle, a look at the queue by
each of them for each job that comes. It names what saturates first, and with how many workers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import closing
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.scale.fleet import Measured, Stand
from benchmarks.scale.model import Station, saturation, solve
from tests.postgres import PostgresMissing, running_postgres

_HERE = (1, 2, 4, 8, 16, 32)
_THERE = (10, 100, 1000)
_JOBS_S = {"a cached model, 0.2 s": 0.2, "a small model, 2 s": 2.0, "ResNet-50, 20 s": 20.0}
_TRIALS_S = {"a trial of 50 ms": 0.05, "a trial of 0.5 s": 0.5}
_HERE_S = {"jobs": 0.2, "trials": 0.05}


def main() -> int:
    """Print tables, or one JSON object; return 2 where PostgreSQL is not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--cores", type=int, default=8, help="of the database's machine, in the model")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    wanted = parser.parse_args()
    try:
        with running_postgres() as url, closing(Stand(url)) as stand:
            found = _measure(stand, wanted.seconds)
    except PostgresMissing as error:
        print(error, file=sys.stderr)
        return 2
    look_s, measured = found
    result = {
        "here": {name: [{**asdict(each), "per_min": each.per_min} for each in rows] for name, rows in measured.items()},
        "look_s": look_s,
        "cores_here": os.cpu_count(),
        "model": _modelled(measured, look_s, wanted.cores),
    }
    if wanted.json:
        print(json.dumps(result))
    else:
        _print(result, wanted.cores)
    return 0


def _measure(stand: Stand, seconds: float) -> tuple[float, dict[str, list[Measured]]]:
    measured = {
        "jobs": [stand.jobs(workers, _HERE_S["jobs"], seconds) for workers in _HERE],
        "trials": [stand.trials(workers, _HERE_S["trials"], seconds) for workers in _HERE],
    }
    return stand.looks(500), measured


def _stations(name: str, rows: list[Measured], cores: int) -> list[Station]:
    """The demands of one job or trial, from the runs in which nothing was saturated."""
    calm = rows[2]
    cpu = Station("PostgreSQL's processors", calm.demand_s, cores)
    return [cpu, Station("the lock of a claim", rows[0].claim_s)] if name == "jobs" else [cpu]


def _modelled(measured: dict[str, list[Measured]], look_s: float, cores: int) -> list[dict[str, Any]]:
    found = []
    for name, times in (("jobs", _JOBS_S), ("trials", _TRIALS_S)):
        stations = _stations(name, measured[name], cores)
        for what, think_s in times.items():
            first, knee, most = saturation(think_s, stations)
            row: dict[str, Any] = {"what": what, "first": first, "knee_workers": knee, "most_per_min": 60 * most}
            for each in solve(_THERE, think_s, stations):
                row[str(each.workers)] = {"per_min": 60 * each.per_s, "busy": dict(each.busy)}
            if name == "jobs":  # each idle worker looks at the queue when a job comes
                row["idle_1000_per_min"] = 60 * cores / (stations[0].demand_s + 1000 * look_s)
            found.append(row)
    return found


def _print(result: dict[str, Any], cores: int) -> None:
    console = Console()
    for name, rows in result["here"].items():
        table = Table(title=f"{name} of {_HERE_S[name]:g} s, measured on {result['cores_here']} cores")
        for column in ("workers", "a minute", "of what they could", "PostgreSQL, ms each", "lock held, ms"):
            table.add_column(column, justify="right")
        for row in rows:
            could = 60 * row["workers"] / _HERE_S[name]
            ms_each = 1e3 * row["cpu_s"] / max(1, row["done"])
            words = (
                f"{row['per_min']:.0f}",
                f"{row['per_min'] / could:.0%}",
                f"{ms_each:.2f}",
                f"{1e3 * row['claim_s']:.2f}",
            )
            table.add_row(str(row["workers"]), *words)
        console.print(table)
    table = Table(title=f"by the model, with a database of {cores} cores: a minute")
    for column in ("what", *map(str, _THERE), "first saturated", "at workers", "most a minute"):
        table.add_column(column, justify="left" if column in ("what", "first saturated") else "right")
    for row in result["model"]:
        counts = (f"{row[str(each)]['per_min']:.0f}" for each in _THERE)
        table.add_row(row["what"], *counts, row["first"], f"{row['knee_workers']:.0f}", f"{row['most_per_min']:.0f}")
    console.print(table)
    idle = min(row["idle_1000_per_min"] for row in result["model"] if "idle_1000_per_min" in row)
    console.print(
        f"A look at the queue takes {1e3 * result['look_s']:.2f} ms of PostgreSQL: with 1000 idle workers, each of "
        f"which looks when a job comes, {idle:.0f} jobs a minute keep its processors busy."
    )


if __name__ == "__main__":
    sys.exit(main())
