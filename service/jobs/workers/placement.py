"""Jobs that no live worker can take are told what they wait for, and those that wait too long fail."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from relaxc.service.config import settings
from relaxc.service.errors import NoWorker
from relaxc.service.jobs.database import jobs, placed, transitions
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.workers.fleet import Fleet, missing_of_all
from relaxc.service.jobs.workers.needs import Needs

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["Placement", "no_worker"]

_LOG = logging.getLogger("relaxc.placement")


def no_worker(missing: list[str]) -> NoWorker:
    """Return the error of a job that waits for these."""
    return NoWorker(f"no live worker can take the job: there is none with {', '.join(missing)}", missing=missing)


class Placement:
    """Looks at what waits; any number of servers may do it at once."""

    def __init__(self, database: Database, fleet: Fleet) -> None:
        self._database = database
        self._fleet = fleet

    def __call__(self) -> list[str]:
        """Note what each job that waits lacks now; return the jobs that have new events. Raise ServiceError."""
        everybody = [each for each in self._fleet.every(fresh=True) if not each.is_silent]
        with self._database.read() as connection:
            waiting: dict[tuple[str, JobKind], list[str]] = {}
            for key, kind in jobs.waiting_needs(connection):
                needs = Needs.from_dict(jobs.needs_of(connection, key))
                waiting[key, kind] = missing_of_all([each for each in everybody if each.takes(kind)], kind, needs)
            changed = self._changed(connection, waiting)
            late = placed.waiting_since(connection, settings().placement_wait_s)
        told = [id for id, missing in changed.items() if self._note(id, missing)]
        return told + [id for id in late if id not in changed and self._give_up(id)]

    def waiting(self) -> dict[tuple[str, bool], int]:
        """Return how many jobs wait, by what they need and whether somebody can take them. Raise ServiceError."""
        found: Counter[tuple[str, bool]] = Counter()
        with self._database.read() as connection:
            for key, number, stuck in placed.counts(connection):
                label = Needs.from_dict(jobs.needs_of(connection, key)).label
                found += Counter({(label, True): number - stuck, (label, False): stuck})
        return dict(found)

    def _changed(self, connection: Connection, waiting: dict[tuple[str, JobKind], list[str]]) -> dict[str, list[str]]:
        marked = placed.marked(connection)
        lacking = {each: missing for each, missing in waiting.items() if missing}
        wanted = {id: missing for each, missing in lacking.items() for id in placed.ids(connection, *each)}
        return {
            id: wanted.get(id, []) for id in wanted.keys() | marked.keys() if wanted.get(id, []) != marked.get(id, [])
        }

    def _note(self, id: str, missing: list[str]) -> bool:
        with self._database.begin() as connection:
            return placed.note(connection, id, missing)

    def _give_up(self, id: str) -> bool:
        with self._database.begin() as connection:
            missing = placed.marked(connection, id).get(id)
            ended = missing is not None and transitions.fail_waiting(connection, id, no_worker(missing))
        if ended:
            _LOG.warning("job %s has failed: nobody had %s", id, missing)
        return ended
