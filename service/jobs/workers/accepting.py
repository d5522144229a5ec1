"""Which of the needs of jobs that wait this machine has: the scheduler claims those jobs only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaxc.service.jobs.database import jobs
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.jobs.workers.needs import Needs

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["Accepting"]

_MAX_KNOWN = 10_000


class Accepting:
    """Looks once at all needs that are equal. One thread calls it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[str, bool] = {"": True}

    def __call__(self, connection: Connection) -> dict[bool, set[str]]:
        """Return the keys of needs that it has, of tunings that wait (True) and of other jobs."""
        found: dict[bool, set[str]] = {False: set(), True: set()}
        for key, kind in jobs.waiting_needs(connection):
            if self._has(connection, key):
                found[kind is JobKind.TUNE].add(key)
        return found

    def _has(self, connection: Connection, key: str) -> bool:
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known = {"": True}
            needs = jobs.needs_of(connection, key)
            if needs is None:  # somebody has begun it meanwhile
                return False
            self._known[key] = not Needs.from_dict(needs).missing(self._machine)
        return self._known[key]
