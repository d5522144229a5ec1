"""How much a call has its database do: counted, so that it is the same on a machine that does other things as well."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import sqlalchemy as sa

from benchmarks.database.calls import CALLS, Case
from relaxc.service.jobs.database.engine import Database

__all__ = ["grown", "work"]

_MOST = {"steps": 1.1, "blocks": 1.5, "wal_bytes": 1.2}
"""A search tree with ten times the rows is a level deeper, which is a block more for each row that is looked for."""

_BLOCKS = sa.text(
    "SELECT blks_hit + blks_read, pg_current_wal_insert_lsn() - '0/0'::pg_lsn FROM pg_stat_database "
    "WHERE datname = current_database()"
)


def work(case: Case, times: int) -> dict[str, dict[str, float]]:
    """Return what each call takes, the median of so many: of SQLite the `steps` of its virtual machine, of PostgreSQL
    the `blocks` that it looks at and the `wal_bytes` that it logs."""
    found: dict[str, list[dict[str, int]]] = {name: [] for name in CALLS}
    for _ in range(times):
        for name, call in CALLS.items():
            found[name].append((_steps if case.database.is_sqlite else _blocks)(case, call))
    return {name: {unit: median(row[unit] for row in rows) for unit in rows[0]} for name, rows in found.items()}


def grown(small: dict[str, dict[str, float]], full: dict[str, dict[str, float]]) -> list[str]:
    """Return the calls that take more work in the fuller of two databases than deeper trees explain."""
    return [
        f"{call}: {small[call][unit]:g} {unit}, and {full[call][unit]:g} in the full one"
        for call, units in small.items()
        for unit in units
        if full[call][unit] > _MOST[unit] * max(units[unit], 20)
    ]


def _steps(case: Case, call: Callable[[Case], object]) -> dict[str, int]:
    """A pool hands out its connections by turns, so each counts."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def counted(connection: Any, record: object, proxy: object) -> None:
        connection.set_progress_handler(step, 1)

    sa.event.listen(case.database.engine, "checkout", counted)
    try:
        call(case)
    finally:
        sa.event.remove(case.database.engine, "checkout", counted)
    return {"steps": steps}


def _blocks(case: Case, call: Callable[[Case], object]) -> dict[str, int]:
    before = _told(case.database)
    call(case)
    after = _told(case.database)
    return {unit: after[unit] - before[unit] for unit in before}


def _told(database: Database) -> dict[str, int]:
    """What the server has counted, with what this connection has done until now: calls of one thread share it."""
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
        blocks, logged = connection.execute(_BLOCKS).one()
    return {"blocks": int(blocks), "wal_bytes": int(logged)}
