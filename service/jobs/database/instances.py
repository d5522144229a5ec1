"""Servers and workers: each says every few seconds that it lives, and is dead when it has not for a lease's time."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.engine import now
from relaxc.service.jobs.database.tables import instances, jobs
from relaxc.service.jobs.job import Claim

__all__ = [
    "any_other",
    "beat",
    "bury",
    "dead",
    "every",
    "forget",
    "heard",
    "ids",
    "is_registered",
    "register",
    "suspicious",
    "workers_of",
]


def register(connection: Connection, id: str, place: str, workspace: str, **about: Any) -> None:
    """Enter this process as the server `id`; its folder is `workspace`, in the cache folder whose mark is `place`.

    `about` are `role`, `slots`, `tune_slots` and `machine`.
    """
    row = {"id": id, "place": place, "workspace": workspace, "host": platform.node(), "pid": os.getpid(), **about}
    connection.execute(sa.insert(instances).values(**row, started=clock.now(), heartbeat=now()))


def every(connection: Connection) -> list[dict[str, Any]]:
    """Return each that is registered, with the seconds since it said that it lives (`silent`) and its jobs."""
    number = sa.func.count().label("running")
    running = sa.select(jobs.c.instance, number).where(jobs.c.state == "running").group_by(jobs.c.instance)
    counts = {row.instance: row.running for row in connection.execute(running)}
    silent = (now() - instances.c.heartbeat).label("silent")
    rows = connection.execute(sa.select(instances, silent).order_by(instances.c.started, instances.c.id))
    return [{**row._mapping, "running": counts.get(row.id, 0)} for row in rows]


def beat(connection: Connection, id: str) -> bool:
    """It lives; False when others have given it up."""
    return connection.execute(sa.update(instances).where(instances.c.id == id).values(heartbeat=now())).rowcount > 0


def is_registered(connection: Connection, id: str) -> bool:
    """Return whether others take it for alive; they cannot give it up until this transaction ends."""
    mine = sa.select(sa.literal(1)).where(instances.c.id == id).with_for_update(read=True, key_share=True)
    return connection.scalar(mine) is not None


def ids(connection: Connection) -> frozenset[str]:
    """Return the servers that are taken for alive."""
    return frozenset(connection.scalars(sa.select(instances.c.id)))


def heard(connection: Connection) -> dict[str, float]:
    """Return when each server said for the last time that it lives, in Unix time."""
    return {row.id: row.heartbeat for row in connection.execute(sa.select(instances.c.id, instances.c.heartbeat))}


def forget(connection: Connection, id: str) -> None:
    """It has ended in order."""
    connection.execute(sa.delete(instances).where(instances.c.id == id))


def suspicious(connection: Connection, me: str, place: str, lease_s: float) -> bool:
    """Return whether one is silent, or shares our cache folder, or a job has none: what `dead` and `bury` look at."""
    silent = now() - instances.c.heartbeat > lease_s
    other = sa.select(sa.literal(1)).where(instances.c.id != me, sa.or_(silent, instances.c.place == place))
    return connection.scalar(other.limit(1)) is not None or connection.execute(_orphaned().limit(1)).first() is not None


def _orphaned() -> sa.Select[tuple[str, int]]:
    nobody = sa.or_(jobs.c.instance.is_(None), jobs.c.instance.not_in(sa.select(instances.c.id)))
    return sa.select(jobs.c.id, jobs.c.epoch).where(jobs.c.state == "running", nobody).order_by(jobs.c.number)


def dead(connection: Connection, me: str, place: str, lease_s: float, is_abandoned: Callable[[str], bool]) -> list[str]:
    """Return the servers that are gone: silent for `lease_s`, or of our cache folder and with an unheld folder."""
    rows = connection.execute(sa.select(instances, (now() - instances.c.heartbeat).label("silent"))).all()
    return [
        row.id
        for row in rows
        if row.id != me and (row.silent > lease_s or (row.place == place and is_abandoned(row.workspace)))
    ]


def any_other(connection: Connection, me: str) -> bool:
    """Return whether there is another than this one."""
    return connection.scalar(sa.select(sa.literal(1)).where(instances.c.id != me).limit(1)) is not None


def workers_of(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """Return those of these that are workers, and the hosts that they run on."""
    mine = sa.select(instances.c.id, instances.c.host).where(instances.c.id.in_(ids), instances.c.role == "worker")
    return {row.id: row.host for row in connection.execute(mine)}


def bury(connection: Connection, ids: Collection[str]) -> list[Claim]:
    """Remove the dead; return the claims on jobs that run on no server that there is."""
    connection.execute(sa.delete(instances).where(instances.c.id.in_(ids)))
    return [(row.id, row.epoch) for row in connection.execute(_orphaned())]
