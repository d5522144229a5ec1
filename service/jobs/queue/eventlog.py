"""What a running job tells, on its way into the database: in order, bounded, and not with a transaction a line."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any

from service.errors import ServiceError
from service.jobs.database import events
from service.jobs.database.engine import Database
from service.jobs.database.rows import JobRow
from service.jobs.database.transitions import held
from service.process.task import finite

__all__ = ["EventLog"]

_LOG = logging.getLogger("relaxc.events")
_PAUSE_S = 0.2
_MAX_EVENTS = 10_000
_MAX_BYTES = 8 << 20
_MAX_EVENT_BYTES = 64 << 10
_MAX_PENDING = 500
_MAX_COUNT = 2**53
_STAGE_CHARS = 64


class EventLog:
    """The events of one claim on one job. `flush` may be called from any thread.

    A stage is written at once, anything else at most five times a second, and of progress between two writes only the
    last. Past 10 000 events or 8 MiB the rest is left out, but for the stages of the job itself.
    """

    def __init__(self, database: Database, job: JobRow) -> None:
        self._database = database
        self._job = job
        self._pending: list[tuple[float, dict[str, Any]]] = []
        self._columns: dict[str, Any] = {}
        self._left = _MAX_EVENTS
        self._left_bytes = _MAX_BYTES
        self._written = 0.0
        self._lock = threading.RLock()
        self.lost = False
        """Whether the claim was found to be over."""

    def take(self, data: dict[str, Any]) -> bool:
        """Add an event of the job's process; return whether it was written, with those before it."""
        with self._lock:
            data = finite(data)
            kind = data.get("event")
            self._note(data, kind)
            if not self._replace_progress(data, kind):
                self._add(data)
            due = time.monotonic() - self._written >= _PAUSE_S
            return self.flush() if kind == "stage" or due or len(self._pending) >= _MAX_PENDING else False

    def flush(self) -> bool:
        """Write what is pending; return False when there is nothing, and while the database does not answer."""
        with self._lock:
            if not self._pending and not self._columns:
                return False
            self._written = time.monotonic()
            try:
                with self._database.begin() as connection:
                    mine = events.append(
                        connection, self._job.id, self._pending, *held(self._job.claim), **self._columns
                    )
            except ServiceError as error:
                _LOG.warning("job %s: %s", self._job.id, error)
                del self._pending[:-_MAX_PENDING]
                return False
            self.lost = self.lost or not mine
            self._pending, self._columns = [], {}
            return mine

    def _note(self, data: dict[str, Any], kind: Any) -> None:
        if kind == "stage" and data.get("state") == "start":
            stage = str(data.get("stage")).replace("\0", "")[:_STAGE_CHARS]
            self._columns |= {"stage": stage, "done": None, "total": None}
        elif kind == "progress":
            done, total = data.get("done"), data.get("total")
            if isinstance(done, int) and isinstance(total, int) and 0 <= done <= total < _MAX_COUNT:
                self._columns |= {"done": done, "total": total}

    def _replace_progress(self, data: dict[str, Any], kind: Any) -> bool:
        last = self._pending[-1][1] if self._pending else {}
        if kind != "progress" or last.get("event") != "progress" or last.get("stage") != data.get("stage"):
            return False
        self._pending[-1] = (time.time(), data)
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
            self._pending.append((time.time(), data))
