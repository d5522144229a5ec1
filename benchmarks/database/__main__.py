"""Fills a database, and compares what the service asks of it with the same in one that is nearly empty.

    python -m benchmarks.database --work work                  SQLite, 10,000 jobs and 1,000,000 events
    python -m benchmarks.database --work work --postgres       a PostgreSQL of its own
    python -m benchmarks.database --work work --retention      and then what deleting all of it takes
    python -m benchmarks.database --work work --count          the work in place of the time, on a machine that is busy

Nearly empty is a thousand jobs with a hundred events each, so that a page has as many rows in both. Every call is
made in both by turns. The bar is a p99 of twice the other's; times tell something on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.database.calls import Case, Times, measure
from benchmarks.database.emptied import empty
from benchmarks.database.fill import Size, fill
from benchmarks.database.work import grown, work
from relaxc.service.jobs.database.engine import Database

_SMALL = Size(jobs=1000, events=100_000, audit=5000)
_BAR = 2.0


def main() -> int:
    """Print a table, or JSON; return 1 when a call is slower than the bar allows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.database", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the databases; it is emptied")
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL instead of SQLite")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--audit", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=300, help="of all calls")
    parser.add_argument("--retention", action="store_true", help="delete what is old, and tell sizes and times")
    parser.add_argument("--count", action="store_true", help="count what a call has the database do; time nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    wanted = parser.parse_args()
    with _databases(wanted.work, postgres=wanted.postgres) as (small, full):
        fill(small, _SMALL)
        fill(full, Size(wanted.jobs, wanted.events, wanted.audit))
        cases = Case(small), Case(full)
        for case in cases:
            case.prepare()
        measure(cases, 10)  # everything is in memory that will be
        if wanted.count:
            return _count(cases)
        rows = [_row(times) for times in measure(cases, wanted.rounds)]
        emptied = empty(cases[1], wanted.work / "cache") if wanted.retention else None
    told = {"database": "postgresql" if wanted.postgres else "sqlite", "calls": rows, "retention": emptied}
    _print(told, as_json=wanted.json)
    return int(any(row["ratio_p99"] > _BAR for row in rows))


@contextmanager
def _databases(folder: Path, *, postgres: bool) -> Iterator[tuple[Database, Database]]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as opened:
        urls = [f"sqlite:///{folder / name}.sqlite3" for name in ("small", "full")]
        if postgres:
            urls = _postgres(opened)
        databases = [Database(url) for url in urls]
        for database in databases:
            opened.callback(database.close)
        yield databases[0], databases[1]


def _postgres(opened: ExitStack) -> list[str]:
    import psycopg

    from tests.postgres import running_postgres

    url = opened.enter_context(running_postgres())
    with psycopg.connect(url, autocommit=True) as connection:
        for name in ("small", "full"):
            connection.execute(f"CREATE DATABASE of_{name}")
    return [url.replace("/postgres?", f"/of_{name}?") for name in ("small", "full")]


def _count(cases: tuple[Case, Case]) -> int:
    """Print the work of each call, and what grows with the tables; return 1 where something does."""
    small, full = (work(case, 9) for case in cases)
    print(json.dumps({"small": small, "full": full, "grown": grown(small, full)}, indent=2))
    return int(bool(grown(small, full)))


def _row(times: Times) -> dict[str, Any]:
    row: dict[str, Any] = {"call": times.call}
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        small, full = (times.quantile(case, part) for case in (0, 1))
        row |= {f"small_{name}_s": small, f"full_{name}_s": full, f"ratio_{name}": full / small}
    return row


def _print(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(told))
        return
    columns = ("small_p50_s", "full_p50_s", "ratio_p50", "small_p99_s", "full_p99_s", "ratio_p99")
    shown = Table(title=f"{told['database']}, ms", title_justify="left", box=None, pad_edge=False)
    for head in ("call", *(name.removesuffix("_s").replace("_", " ") for name in columns)):
        shown.add_column(head, justify="left" if head == "call" else "right")
    for row in told["calls"]:
        shown.add_row(row["call"], *(f"{row[name] * (1e3 if name.endswith('_s') else 1):.2f}" for name in columns))
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(shown)
    if told["retention"]:
        console.print_json(json.dumps(told["retention"]))


if __name__ == "__main__":
    sys.exit(main())
