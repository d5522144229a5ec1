"""The audit log of one server: rows are written in the background, and each is a log line at once."""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import suppress
from dataclasses import asdict

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database import audit
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import AuditRow

__all__ = ["AuditLog"]

_LOG = logging.getLogger("relaxc.audit")
_MOST_WAITING = 10_000
_AT_ONCE = 500
_AGAIN_S = 1.0
_CLOSE_S = 10.0


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
        """Add a row, without waiting for the database."""
        who, facts = f"{row.key} of {row.owner}", asdict(row)
        _LOG.info("%s %s by %s: %s", row.action, row.object, who, row.outcome, extra={"audit": facts})
        try:
            self._waiting.put_nowait(row)
        except queue.Full:
            _LOG.error("the audit log's table lacks %s", asdict(row))

    def close(self) -> None:
        """Write what waits, for at most some seconds: a database may hang. May be called twice."""
        if not self._closed.is_set():
            self._closed.set()
            with suppress(queue.Full):  # then the thread has enough to do to see that it is the end
                self._waiting.put_nowait(None)
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                _LOG.error("the audit log's table lacks the last %d rows", self._waiting.qsize())

    def _work(self) -> None:
        ended = False
        while not ended:
            rows = [self._waiting.get()]
            while len(rows) < _AT_ONCE and not self._waiting.empty():
                rows.append(self._waiting.get())
            written = self._write([row for row in rows if row is not None])
            ended = None in rows or (self._closed.is_set() and (not written or self._waiting.empty()))

    def _write(self, rows: list[AuditRow]) -> bool:
        """Tries until it is written, or until the server ends and the database still does not answer."""
        while True:
            try:
                with self._database.begin() as connection:
                    audit.append(connection, rows)
                return True
            except ServiceError as error:
                _LOG.warning("the audit log's table waits for %d rows: %s", len(rows), error)
            except Exception:  # noqa: BLE001  # a bug with these rows must not end the log of all later ones
                _LOG.exception("the audit log's table lacks %d rows", len(rows))
                return True
            if self._closed.wait(_AGAIN_S):
                _LOG.error("the audit log's table lacks %d rows", len(rows) + self._waiting.qsize())
                return False
