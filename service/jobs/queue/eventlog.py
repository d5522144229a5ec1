"""What a running job tells, on its way into the database: in order, bounded, and not with a transaction a line."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database import clock, events
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobRow
from relaxc.service.jobs.database.transitions import held
from relaxc.service.process.task import finite

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["EventLog", "Pending"]

_LOG = logging.getLogger("relaxc.events")
_MAX_EVENTS = 10_000
_MAX_BYTES = 8 << 20
_MAX_EVENT_BYTES = 64 << 10
_MAX_PENDING = 500
_MAX_COUNT = 2**53
_STAGE_CHARS = 64


Told = tuple[float, dict[str, Any]]
"""The time of an event, and its data."""


@dataclass(slots=True)
class Pending:
    """Events of a claim that are not written yet, and what the job's row gets with them."""

    job: JobRow
    told: list[Told]
    columns: dict[str, Any]
    refused: bool = False

    def __bool__(self) -> bool:
        return bool(self.told or self.columns)

    def write(self, connection: Connection) -> bool:
        """Add them; write nothing and return False where the claim is over."""
        self.refused = not events.append(connection, self.job.id, self.told, *held(self.job.claim), **self.columns)
        return not self.refused


class EventLog:
    """The events of one claim on one job. Any thread may `flush`, which the scheduler does ten times a second.

    So the stages of a quick compile are a transaction or two, and nobody who tells waits for the disk. Of progress
    between two writes only the last is kept. Past 10 000 events or 8 MiB the rest is left out, but for the stages of
    the job itself.
    """

    def __init__(self, database: Database, job: JobRow) -> None:
        self._database = database
        self._job = job
        self._told: list[Told] = []
        self._columns: dict[str, Any] = {}
        self._left = _MAX_EVENTS
        self._left_bytes = _MAX_BYTES
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self.lost = False
        """Whether the claim was found to be over."""

    def take(self, data: dict[str, Any]) -> bool:
        """Add an event of the job's process; return whether it was written at once, as very many had come."""
        data = finite(data)
        kind = data.get("event")
        with self._lock:
            self._note(data, kind)
            if not self._replace_progress(data, kind):
                self._add(data)
            crowded = len(self._told) >= _MAX_PENDING
        return self.flush() if crowded else False

    def note(self, **columns: Any) -> None:
        """Give the job's row these values with what is written next."""
        with self._lock:
            self._columns |= columns

    def flush(self) -> bool:
        """Write what is pending; return False when there is nothing, and while the database does not answer."""
        try:
            with self.taken() as pending:
                if not pending:
                    return False
                with self._database.begin() as connection:
                    return pending.write(connection)
        except ServiceError as error:
            _LOG.warning("job %s: %s", self._job.id, error)
            return False

    @contextmanager
    def taken(self) -> Iterator[Pending]:
        """Give what is pending, to be written in a transaction within the block; where that raises, it stays pending.

        One block at a time, so that events keep their order.
        """
        with self._writing:
            with self._lock:
                found = Pending(self._job, self._told, self._columns)
                self._told, self._columns = [], {}
            try:
                yield found
            except BaseException:
                with self._lock:
                    self._told = [*found.told, *self._told][-_MAX_PENDING:]
                    self._columns = found.columns | self._columns
                raise
            self.lost = self.lost or found.refused

    def _note(self, data: dict[str, Any], kind: Any) -> None:
        if kind == "stage" and data.get("state") == "start":
            stage = str(data.get("stage")).replace("\0", "")[:_STAGE_CHARS]
            self._columns |= {"stage": stage, "done": None, "total": None}
        elif kind == "progress":
            done, total = data.get("done"), data.get("total")
            if isinstance(done, int) and isinstance(total, int) and 0 <= done <= total < _MAX_COUNT:
                self._columns |= {"done": done, "total": total}

    def _replace_progress(self, data: dict[str, Any], kind: Any) -> bool:
        last = self._told[-1][1] if self._told else {}
        if kind != "progress" or last.get("event") != "progress" or last.get("stage") != data.get("stage"):
            return False
        self._told[-1] = (clock.now(), data)
        return True

    def _add(self, data: dict[str, Any]) -> None:
        size = len(json.dumps(data, default=str))
        if size > _MAX_EVENT_BYTES:
            data, size = {"event": "log", "level": "warning", "message": f"an event of {size} bytes was left out"}, 100
        self._left, self._left_bytes = self._left - 1, self._left_bytes - size
        if self._left == 0 or (self._left > 0 and self._left_bytes <= 0):
            self._left = 0
            data = {"event": "log", "level": "warning", "message": "the job tells too much: the rest is left out"}
        if self._left >= 0:
            self._told.append((clock.now(), data))
