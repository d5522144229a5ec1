"""What all owners have at once, for who watches the server: nobody is named."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import quotas, tuning_times
from relaxc.service.jobs.database.quotas import QUOTAS
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.database.tables import artifacts, jobs, model_contents, models, record_sets, uploads
from relaxc.service.jobs.database.tables import tuning_times as times
from relaxc.service.jobs.job import State

__all__ = ["SHARES", "owners_at"]

SHARES = (0.5, 0.8, 1.0)
_HOUR_S = 3600.0


def owners_at(connection: Connection) -> dict[tuple[str, float], int]:
    """Return how many owners have at least each of `SHARES` of each quota; of a limit that is none nobody has a part.

    Work grows with the rows that owners have, not with their jobs that have ended.
    """
    used = {
        **_live_jobs(connection),
        "bytes": _bytes(connection),
        "tuning_hours": _tuning_hours(connection),
    }
    allowed = quotas.of_owners(connection, {owner for amounts in used.values() for owner in amounts})
    found: Counter[tuple[str, float]] = Counter()
    for name, amounts in used.items():
        for owner, amount in amounts.items():
            limit = getattr(allowed[owner], name)
            found.update((name, share) for share in SHARES if limit < math.inf and amount >= share * limit > 0)
    return {(name, share): found[name, share] for name in QUOTAS for share in SHARES}


def _live_jobs(connection: Connection) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {"queued_jobs": {}, "running_jobs": {}}
    live = jobs.c.state.in_([State.QUEUED, State.RUNNING])
    counted = sa.select(jobs.c.owner, jobs.c.state, sa.func.count()).where(live).group_by(jobs.c.owner, jobs.c.state)
    for owner, state, number in connection.execute(counted):
        found[f"{state}_jobs"][owner] = number
    return found


def _bytes(connection: Connection) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    sized = sa.select(models.c.owner, sa.func.sum(model_contents.c.size_bytes)).join(
        model_contents, model_contents.c.digest == models.c.digest
    )
    sums = [sized.group_by(models.c.owner)]
    for table in (artifacts, record_sets, uploads):
        sums.append(sa.select(table.c.owner, sa.func.sum(table.c.size_bytes)).group_by(table.c.owner))
    for owner, size in (row for wanted in sums for row in connection.execute(wanted)):
        found[owner] += int(size or 0)
    return found


def _tuning_hours(connection: Connection) -> dict[str, float]:
    live = jobs.c.kind == JobKind.TUNE, jobs.c.state.in_([State.QUEUED, State.RUNNING])
    tuned = sa.union(sa.select(jobs.c.owner).where(*live), sa.select(times.c.owner))
    return {owner: tuning_times.taken_s(connection, owner) / _HOUR_S for owner in connection.scalars(tuned)}
