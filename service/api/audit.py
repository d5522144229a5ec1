"""The audit log of one server: rows are written in the background, and each is a log line at once."""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import asdict

from service.errors import ServiceError
from service.jobs.database import audit
from service.jobs.database.engine import Database
from service.jobs.database.rows import AuditRow

__all__ = ["AuditLog"]

_LOG = logging.getLogger("relaxc.audit")
_MOST_WAITING = 10_000
_AT_ONCE = 500
_AGAIN_S = 1.0


class AuditLog:
    """Takes rows from any thread; a thread of its own writes them, several in a transaction.

    While the database does not answer, up to ten thousand rows wait; beyond that only their log lines are left.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: queue.Queue[AuditRow | None] = queue.Queue(_MOST_WAITING)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
        self._thread.start()

    def add(self, row: AuditRow) -> None:
        """Does not wait for the database."""
        _LOG.info("%s %s by %s: %s", row.action, row.object, row.key, row.outcome, extra={"audit": asdict(row)})
        try:
            self._waiting.put_nowait(row)
        except queue.Full:
            _LOG.error("the audit log's table lacks %s", asdict(row))

    def close(self) -> None:
        """Writes what waits. May be called twice."""
        if not self._closed.is_set():
            self._closed.set()
            self._waiting.put(None)
            self._thread.join()

    def _work(self) -> None:
        ended = False
        while not ended:
            rows = [self._waiting.get()]
            while len(rows) < _AT_ONCE and not self._waiting.empty():
                rows.append(self._waiting.get())
            ended = None in rows
            self._write([row for row in rows if row is not None])

    def _write(self, rows: list[AuditRow]) -> None:
        """Tries until it is written, or until the server ends and the database still does not answer."""
        while True:
            try:
                with self._database.begin() as connection:
                    audit.append(connection, rows)
                return
            except ServiceError as error:
                if self._closed.wait(_AGAIN_S):
                    _LOG.error("the audit log's table lacks %d rows: %s", len(rows), error)
                    return
