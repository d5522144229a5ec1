"""When an owner last used a model, an artifact or a record set: what is not used for long may be taken from him."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.tables import artifacts, jobs, model_aliases, models, record_sets
from relaxc.service.jobs.database.upsert import insert_new
from relaxc.service.jobs.job import State

__all__ = ["OWNED", "Needed", "insert_or_touch", "needed", "remove_unused", "touch"]

OWNED = (models, artifacts, record_sets)
"""Tables of (owner, digest) with the column `used`."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Digests that jobs need which wait or run."""

    models: frozenset[str]
    artifacts: frozenset[str]
    record_sets: frozenset[str]


def touch(connection: Connection, table: sa.Table, owner: str | None, digest: str, *, older_than_s: float = 0) -> bool:
    """Note that `owner`, or everybody where None is named, uses it now; return False where nobody of them has it.

    A use that is noted already, and not longer ago than `older_than_s`, is left as it is, and counts as not found.
    """
    now = clock.now()
    used = sa.update(table).where(table.c.digest == digest)
    used = used if owner is None else used.where(table.c.owner == owner)
    used = used.where(table.c.used < now - older_than_s) if older_than_s else used
    return connection.execute(used.values(used=now)).rowcount > 0


def insert_or_touch(connection: Connection, table: sa.Table, owner: str, digest: str, **values: Any) -> bool:
    """Give it to the owner, or note that he uses it who has it already; return whether he did not."""
    while not insert_new(connection, table, owner=owner, digest=digest, **values):
        if touch(connection, table, owner, digest):
            return False
    return True


def needed(connection: Connection) -> Needed:
    """Return what live jobs need: as many as may wait, so few."""
    live = jobs.c.state.in_([State.QUEUED, State.RUNNING])
    rows = connection.execute(sa.select(jobs.c.model, jobs.c.extras).where(live)).all()

    def named(field: str) -> frozenset[str]:
        return frozenset(row.extras[field] for row in rows if row.extras.get(field))

    return Needed(frozenset(row.model for row in rows if row.model), named("artifact"), named("records"))


def remove_unused(
    connection: Connection, table: sa.Table, before: float, keep: Collection[str], most: int
) -> dict[str, int]:
    """Take at most `most` from their owners that were last used before this time, but for the digests in `keep`.

    Return how many rows went, by table: aliases go with a model. Who begins to use one at the same moment keeps it
    (`touch`), or finds that it is gone.
    """
    old = sa.select(table.c.owner, table.c.digest).where(table.c.used < before, table.c.digest.not_in(keep))
    rows = connection.execute(old.order_by(table.c.used).limit(most)).all()
    pairs = [(row.owner, row.digest) for row in rows]
    if not pairs:
        return {}

    def chosen(of: sa.Table) -> sa.ColumnElement[bool]:
        return sa.tuple_(of.c.owner, of.c.digest).in_(pairs)

    theirs = sa.select(sa.func.count()).select_from(model_aliases).where(chosen(model_aliases))
    aliases = {model_aliases.name: connection.scalar(theirs) or 0} if table is models else {}
    gone = sa.delete(table).where(chosen(table), table.c.used < before)
    return {table.name: connection.execute(gone).rowcount, **aliases}
