"""What the service asks of its database all the time, one function a call; timed in both databases by turns."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from benchmarks.database.fill import INSTANCE
from relaxc.service.jobs.database import audit, claims, events, jobs, transitions
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import AuditFilter, JobKind, JobRow
from relaxc.service.jobs.database.tables import jobs as jobs_table
from relaxc.service.jobs.job import State

__all__ = ["CALLS", "Case", "Times", "measure"]

_NUMBERS = itertools.count(1 << 40)
_PAGE = 50
_FEW = 2
"""As many as there are of each in both."""

_ALL: dict[str, Any] = {"state": None, "kind": None, "model": None, "limit": _PAGE, "cursor": None}


@dataclass(slots=True)
class Case:
    """A database that is asked, a job of it that has ended, and the cursor of a page in its middle."""

    database: Database
    ended: str = ""
    middle: str = ""
    running: JobRow | None = None

    def prepare(self) -> None:
        """Find what the calls are about."""
        with self.database.read() as connection:
            first = jobs.page(connection, None, **_ALL)
            self.ended = first.jobs[0].id
            mine = sa.select(sa.func.count()).where(jobs_table.c.owner == "o_1")
            half, cursor = (connection.scalar(mine) or 0) // 2, None
            for _ in range(half // _PAGE):
                cursor = jobs.page(connection, "o_1", **{**_ALL, "cursor": cursor}).next
            self.middle = cursor or ""
        submit(self)
        claim(self)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that each of many calls took."""

    call: str
    seconds: tuple[list[float], ...] = field(repr=False)

    def quantile(self, case: int, part: float) -> float:
        """Return the time in one of the databases that this part of its calls stays under."""
        ordered = sorted(self.seconds[case])
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _page(case: Case, owner: str | None, **filters: Any) -> None:
    with case.database.read() as connection:
        jobs.page(connection, owner, **{**_ALL, **filters})


def submit(case: Case) -> None:
    """Put a job into the queue, as a submission does after its checks."""
    with case.database.begin() as connection:
        jobs.find_live(connection, "o_1", "none")
        jobs.waiting(connection, "o_1")
        columns: dict[str, Any] = {"target": {}, "options": {}, "extras": {}, "priority": 0, "weight": 1.0}
        key = f"{next(_NUMBERS):064x}"
        facts = {"kind": JobKind.COMPILE, "owner": "o_1", "name": "x", "memory_bytes": 1, "request_key": key}
        jobs.insert(connection, **columns, **facts)


def claim(case: Case) -> None:
    """Begin the job whose turn it is."""
    with case.database.begin() as connection:
        claimed = claims.claim(connection, INSTANCE, False, lambda candidate: True)
    case.running = claimed[0] if claimed else case.running


def append(case: Case) -> None:
    """Write twelve events of a running job."""
    assert case.running is not None
    told: list[tuple[float, dict[str, Any]]] = [(time.time(), {"event": "log", "message": "x"})] * 12
    with case.database.begin() as connection:
        assert events.append(connection, case.running.id, told, *transitions.held(case.running.claim), stage="build")


def finish(case: Case) -> None:
    """End the running job."""
    assert case.running is not None
    with case.database.begin() as connection:
        assert transitions.end(connection, case.running, Outcome()) is not None


def _read(case: Case) -> None:
    with case.database.read() as connection:
        events.read(connection, case.ended, 0, 100)


def _follow(case: Case) -> None:
    with case.database.read() as connection:
        events.counts(connection, [case.ended])


def _get(case: Case) -> None:
    with case.database.read() as connection:
        jobs.get(connection, case.ended)


def _audit(case: Case, wanted: AuditFilter) -> None:
    with case.database.read() as connection:
        audit.page(connection, wanted, _PAGE, None)


CALLS: dict[str, Callable[[Case], object]] = {
    "list: an owner's": lambda case: _page(case, "o_1"),
    "list: from its middle": lambda case: _page(case, "o_1", cursor=case.middle or None),
    "list: an admin's": lambda case: _page(case, None),
    "list: failed": lambda case: _page(case, "o_1", state=State.FAILED, limit=_FEW),
    "list: tunings": lambda case: _page(case, "o_1", kind=JobKind.TUNE, limit=_FEW),
    "list: of a model": lambda case: _page(case, "o_1", model=f"{1:064x}", limit=_FEW),
    "get": _get,
    "events: read": _read,
    "events: anything new": _follow,
    "events: write twelve": append,
    "end": finish,
    "submit": submit,
    "claim": claim,
    "audit: newest": lambda case: _audit(case, AuditFilter()),
    "audit: of a key": lambda case: _audit(case, AuditFilter(key="k_1")),
    "audit: of an action": lambda case: _audit(case, AuditFilter(action="DELETE /v1/models/{digest}")),
}
"""In this order: `end` ends what `claim` has begun."""


def measure(cases: tuple[Case, ...], rounds: int) -> list[Times]:
    """Time every call, in each database by turns, so that what else the machine does hits all alike."""
    found: dict[str, tuple[list[float], ...]] = {name: tuple([] for _ in cases) for name in CALLS}
    for _ in range(rounds):
        for name, call in CALLS.items():
            for case, seconds in zip(cases, found[name], strict=True):
                begun = time.perf_counter()
                call(case)
                seconds.append(time.perf_counter() - begun)
    return [Times(name, seconds) for name, seconds in found.items()]
