"""Whose turn it is: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) over the owners of jobs.

A job's start tag is the later of the virtual time and of its owner's finish tag; the least goes first, and the virtual
time is the start tag of what went last. An owner's finish tag grows by the seconds of a worker that its jobs take over
its weight: one second when a job starts, so that the next turn is somebody else's, the rest when it ends.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database.tables import shares
from relaxc.service.jobs.database.upsert import insert_or_update

__all__ = ["START_S", "VIRTUAL_TIME", "charge", "start", "start_tags"]

START_S = 1.0
"""The seconds that are charged at a job's start."""

VIRTUAL_TIME = ""
"""The row of the virtual time; no owner has this id."""


def start_tags(connection: Connection, owners: Collection[str]) -> dict[str, float]:
    """Return the start tag that a job of each of these owners would have now."""
    wanted = sa.select(shares).where(shares.c.owner.in_([VIRTUAL_TIME, *owners]))
    finish: dict[str, float] = {row.owner: row.finish for row in connection.execute(wanted)}
    virtual_time = finish.get(VIRTUAL_TIME, 0.0)
    return {owner: max(virtual_time, finish.get(owner, 0.0)) for owner in owners}


def start(connection: Connection, owner: str, weight: float, tag: float) -> None:
    """Note that a job of `owner` with this start tag begins."""
    insert_or_update(connection, shares, ("owner",), owner=VIRTUAL_TIME, finish=tag)
    insert_or_update(connection, shares, ("owner",), owner=owner, finish=tag + START_S / weight)


def charge(connection: Connection, owner: str, weight: float, seconds: float) -> None:
    """Note that a job of `owner` has ended after `seconds`."""
    rest = max(0.0, seconds - START_S) / weight
    connection.execute(sa.update(shares).where(shares.c.owner == owner).values(finish=shares.c.finish + rest))
