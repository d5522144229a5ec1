"""What an owner may have at a time, what it has, and whether one thing more fits: asked in the transaction that admits.

`hold` locks the owner's row, so that of two requests at once, on whatever servers, the second counts the first. Who
locks a job's row as well locks the owner's before.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.config import settings
from relaxc.service.errors import QuotaExceeded, StorageQuotaExceeded
from relaxc.service.jobs.database import clock, tuning_times
from relaxc.service.jobs.database.tables import artifacts, jobs, model_contents, models, owners, record_sets, uploads
from relaxc.service.jobs.database.upsert import insert_new
from relaxc.service.jobs.job import State

__all__ = ["QUOTAS", "Quotas", "Use", "admit_bytes", "admit_job", "admit_tuning", "hold", "of_owners", "quotas", "use"]

QUOTAS = ("queued_jobs", "running_jobs", "bytes", "tuning_hours")
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Quotas:
    """What an owner may have at a time; infinite where there is no limit. Tuning counts over the last 30 days."""

    queued_jobs: float
    running_jobs: float
    bytes: float
    tuning_hours: float

    @staticmethod
    def of(own: Mapping[str, Any]) -> Quotas:
        """Return the quotas of an owner who has these of its own, null for no limit, and the settings' others."""
        values = settings()
        queued = values.quota_queued_jobs
        default = {
            "queued_jobs": float(max(1, values.queue_max // 2)) if queued is None else queued,
            "running_jobs": values.quota_running_jobs,
            "bytes": values.quota_bytes,
            "tuning_hours": values.quota_tuning_hours,
        }
        return Quotas(
            **default | {name: math.inf if own[name] is None else own[name] for name in QUOTAS if name in own}
        )


@dataclass(frozen=True, slots=True)
class Use:
    """What an owner has: of bytes also those that are on their way, of tuning also what its live jobs may take yet."""

    queued_jobs: int
    running_jobs: int
    bytes: int
    tuning_hours: float


def hold(connection: Connection, owner: str) -> Quotas:
    """Return the owner's quotas, and let nobody else hold them until this transaction ends."""
    wanted = sa.select(owners.c.quotas).where(owners.c.id == owner).with_for_update()
    own = connection.scalar(wanted)
    if own is None:  # an owner without a row has none to lock
        facts = {"name": owner, "weight": 1.0, "webhook_secret": "", "created": clock.now()}
        insert_new(connection, owners, id=owner, quotas={}, **facts)
        own = connection.scalar(wanted)
    return Quotas.of(own or {})


def quotas(connection: Connection, owner: str) -> Quotas:
    """Return the owner's quotas."""
    return of_owners(connection, [owner])[owner]


def of_owners(connection: Connection, ids: Collection[str]) -> dict[str, Quotas]:
    """Return the quotas of these owners."""
    rows = connection.execute(sa.select(owners.c.id, owners.c.quotas).where(owners.c.id.in_(ids)))
    own = {row.id: row.quotas for row in rows}
    return {id: Quotas.of(own.get(id, {})) for id in ids}


def use(connection: Connection, owner: str) -> Use:
    """Return what the owner has."""
    live = jobs.c.state.in_([State.QUEUED, State.RUNNING])
    counted = sa.select(jobs.c.state, sa.func.count()).where(jobs.c.owner == owner, live).group_by(jobs.c.state)
    counts = {State(state): number for state, number in connection.execute(counted)}
    return Use(
        counts.get(State.QUEUED, 0),
        counts.get(State.RUNNING, 0),
        _bytes(connection, owner),
        tuning_times.taken_s(connection, owner) / _HOUR_S,
    )


def admit_job(queued: int, held: Quotas) -> None:
    """Raise QuotaExceeded where an owner with so many waiting jobs may have no further one."""
    if queued >= held.queued_jobs:
        message = f"{queued} jobs of this owner wait already, and it may have {held.queued_jobs:g}"
        wait_s = min(60, 1 + queued)
        raise QuotaExceeded(
            message, quota="queued_jobs", limit=int(held.queued_jobs), used=queued, asked=1, retry_after_s=wait_s
        )


def admit_bytes(connection: Connection, owner: str, held: Quotas, size_bytes: int, *, upload: str = "") -> None:
    """Raise StorageQuotaExceeded where so many bytes more do not fit; those of `upload` are no longer on their way."""
    if size_bytes <= 0 or held.bytes == math.inf:
        return
    used = _bytes(connection, owner, without=upload)
    if used + size_bytes > held.bytes:
        raise StorageQuotaExceeded(
            f"{size_bytes} bytes more do not fit: this owner has {used} of {held.bytes:.0f} bytes",
            quota="bytes",
            limit=int(held.bytes),
            used=used,
            asked=size_bytes,
        )


def admit_tuning(connection: Connection, owner: str, held: Quotas, time_s: float) -> None:
    """Raise QuotaExceeded where a tuning of so many seconds does not fit into the last 30 days."""
    if held.tuning_hours == math.inf:
        return
    limit_s = held.tuning_hours * _HOUR_S
    used_s = tuning_times.taken_s(connection, owner)
    if used_s + time_s <= limit_s:
        return
    facts: dict[str, Any] = {"quota": "tuning_hours", "limit": held.tuning_hours}
    facts |= {"used": round(used_s / _HOUR_S, 3), "asked": round(time_s / _HOUR_S, 3)}
    wait_s = tuning_times.wait_s(connection, owner, used_s + time_s - limit_s) if time_s <= limit_s else None
    raise QuotaExceeded(
        f"{time_s / _HOUR_S:.2f} hours of tuning do not fit: this owner has {used_s / _HOUR_S:.2f} of "
        f"{held.tuning_hours:g} hours in 30 days",
        remedy="Ask for less time (time_s), cancel a tuning that waits or runs, or have an admin raise the quota.",
        **facts,
        **({} if wait_s is None else {"retry_after_s": math.ceil(wait_s)}),
    )


def _bytes(connection: Connection, owner: str, without: str = "") -> int:
    """The bytes of all that the owner refers to, whoever else does, and of what is on its way."""
    sized = model_contents.c.digest == models.c.digest
    parts = (
        sa.select(sa.func.sum(model_contents.c.size_bytes)).where(models.c.owner == owner, sized),
        sa.select(sa.func.sum(artifacts.c.size_bytes)).where(artifacts.c.owner == owner),
        sa.select(sa.func.sum(record_sets.c.size_bytes)).where(record_sets.c.owner == owner),
        sa.select(sa.func.sum(uploads.c.size_bytes)).where(uploads.c.owner == owner, uploads.c.name != without),
    )
    row = connection.execute(sa.select(*(part.scalar_subquery() for part in parts))).one()
    return sum(int(size or 0) for size in row)
