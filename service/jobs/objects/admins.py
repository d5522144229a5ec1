"""That somebody is left who can ask as an admin, whatever admins do to one another at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from relaxc.service.errors import AdminNeeded
from relaxc.service.jobs.database import clock, keys
from relaxc.service.jobs.database.engine import Database

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["ADMINS_LOCK", "changing"]

ADMINS_LOCK = 5
"""The name of the lock that a transaction holds which may take admin from somebody."""


@contextmanager
def changing(database: Database, connection: Connection, asker: str | None) -> Iterator[None]:
    """Let the block change keys and owners in this transaction, in the name of the owner `asker`.

    Raise AdminNeeded where that takes admin from the asker, or from the last who has it. None is who runs the server,
    and can make another key: for him nothing is checked.
    """
    if asker is None:
        yield
        return
    database.lock(connection, ADMINS_LOCK)
    now = clock.now()
    before = keys.admins(connection, now)
    yield
    after = keys.admins(connection, now)
    if asker in before - after:
        raise AdminNeeded("this would take admin from yourself", who="oneself")
    if before and not after:
        raise AdminNeeded("this would take admin from the last who has it", who="last")
