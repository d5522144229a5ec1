"""The time that rows bear: the database's, on which all servers agree, whatever the clocks of their hosts say."""

from __future__ import annotations

import time

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database.engine import now as database_now

__all__ = ["file_time", "now", "sync"]

_ahead_s: float | None = None
"""How far the database's clock is ahead of this host's time since its start, which nobody sets."""


def sync(connection: Connection) -> None:
    """Ask the database what time it is: at the start, and with each heartbeat."""
    global _ahead_s  # one process has one time, whatever databases it opens
    told = connection.scalar(sa.select(database_now()))
    if told is not None:
        _ahead_s = told - _since_start()


def now() -> float:
    """Return the database's time as Unix seconds; this host's where none was asked."""
    return time.time() if _ahead_s is None else _since_start() + _ahead_s


def file_time() -> float:
    """Return what to compare with a file's time: the earlier of both clocks, so that neither makes a file old."""
    return min(time.time(), now())


def _since_start() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
