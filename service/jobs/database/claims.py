"""Whose turn it is: the queued job that a machine may start next, and its start, which makes a new epoch.

A claim alone makes one, and none comes twice: who has lost its claim can change nothing (`transitions`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import clock, events, instances, quotas, shares
from relaxc.service.jobs.database.jobs import get
from relaxc.service.jobs.database.rows import JobKind, JobRow
from relaxc.service.jobs.database.tables import jobs, owners
from relaxc.service.jobs.job import State

__all__ = ["PLACED", "Candidate", "Lane", "claim", "waits"]

Lane = bool
"""True is the lane of tuning, False that of all other jobs."""

PLACED = {"missing": None, "missing_since": None}
"""Columns of a job that waits for no machine any more."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that could run next."""

    id: str
    owner: str
    weight: float
    memory_bytes: int
    tag: float


def claim(
    connection: Connection,
    instance: str,
    lane: Lane,
    fits: Callable[[Candidate], bool],
    *,
    without: Collection[str] = (),
    accepts: Collection[str] = ("",),
) -> tuple[JobRow, int] | None:
    """Start the job whose turn it is on `instance`, if it `fits`, and return it with its memory estimate in bytes.

    One that does not fit holds up its lane, so that small jobs cannot starve a large one; those of the ids `without`
    are passed over, those whose needs are not among the keys that this machine `accepts`, and those of owners who have
    as many running as they may. A server that others have given up starts nothing. The caller holds a lock.
    """
    if not instances.is_registered(connection, instance):
        return None
    chosen = _next(connection, lane, without, accepts)
    if chosen is None or not fits(chosen):
        return None
    told = [(clock.now(), {"event": "state", "state": State.RUNNING.value, "worker": instance})]
    counted = {"attempts": jobs.c.attempts + 1, "epoch": jobs.c.epoch + 1}
    columns = {"state": State.RUNNING, "instance": instance, "started": clock.now(), **counted, **PLACED}
    if not events.append(connection, chosen.id, told, jobs.c.state == State.QUEUED, **columns):
        return None
    shares.start(connection, chosen.owner, chosen.weight, chosen.tag)
    return get(connection, chosen.id), chosen.memory_bytes


def waits(connection: Connection, lane: Lane, *, without: Collection[str], accepts: Collection[str]) -> bool:
    """Return whether there is a job that `claim` would start, if it fits."""
    return _next(connection, lane, without, accepts) is not None


def _next(connection: Connection, lane: Lane, without: Collection[str], accepts: Collection[str]) -> Candidate | None:
    """Each owner's first by priority, then the owner whose turn it is.

    A request that runs already, for another owner, is left until that has ended: then the store has the answer. So are
    the jobs of an owner who is disabled.
    """
    running = sa.alias(jobs)
    twin = sa.exists().where(running.c.state == State.RUNNING, running.c.request_key == jobs.c.request_key)
    place = sa.func.row_number().over(partition_by=jobs.c.owner, order_by=(jobs.c.priority.desc(), jobs.c.number))
    stopped = sa.select(owners.c.id).where(owners.c.disabled.is_not(None))
    in_lane = jobs.c.kind == JobKind.TUNE if lane else jobs.c.kind != JobKind.TUNE
    ranked = sa.select(
        *(jobs.c.id, jobs.c.owner, jobs.c.weight, jobs.c.memory_bytes, jobs.c.number), place.label("place")
    ).where(jobs.c.state == State.QUEUED, in_lane, ~twin, jobs.c.id.not_in(without), jobs.c.owner.not_in(stopped))
    ranked = ranked.where(jobs.c.needs_key.in_(accepts))
    heads = ranked.subquery()
    rows = _that_may_run(connection, connection.execute(sa.select(heads).where(heads.c.place == 1)).all())
    tags = shares.start_tags(connection, [row.owner for row in rows])
    first = min(rows, key=lambda row: (tags[row.owner], row.number), default=None)
    if first is None:
        return None
    return Candidate(first.id, first.owner, first.weight, first.memory_bytes, tags[first.owner])


def _that_may_run(connection: Connection, rows: Sequence[sa.Row[Any]]) -> list[sa.Row[Any]]:
    """Those of owners who have fewer jobs running than they may."""
    number = sa.func.count().label("number")
    counted = sa.select(jobs.c.owner, number).where(jobs.c.state == State.RUNNING).group_by(jobs.c.owner)
    running = {row.owner: row.number for row in connection.execute(counted)}
    allowed = quotas.of_owners(connection, {row.owner for row in rows})
    return [row for row in rows if running.get(row.owner, 0) < allowed[row.owner].running_jobs]
