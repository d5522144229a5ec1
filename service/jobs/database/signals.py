"""What one process tells the others of a database, without their asking again and again: LISTEN and NOTIFY.

PostgreSQL alone has it. A word may be lost, and behind a pgbouncer that lends connections for a transaction none comes
at all: so nothing depends on one but how soon the others look, and they look often while nothing `is_heard`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database.engine import Database

if TYPE_CHECKING:
    import psycopg

__all__ = ["ENDED", "EVENTS", "QUEUE", "Signals"]

QUEUE = "queue"
"""Somebody may have something to begin, or to end."""

ENDED = "ended"
"""A job has ended: somebody may have asked to be told."""

EVENTS = "events"
"""These jobs have told something; what is told comes with it, by id."""

Heard = Callable[[str, tuple[str, ...]], None]

_LOG = logging.getLogger("relaxc.signals")
_CHANNEL = "relaxc"
_PROBE = "probe"
_AT_ONCE = 200
"""Ids in one NOTIFY, which has 8000 bytes."""

_GAP_S = 0.05
_PROBE_S = 5.0
_LONGEST_S = 30.0
_AGAIN_S = 2.0


class Signals:
    """A thread with a connection of its own. Any may `tell`, after its transaction; `heard` is called in this one."""

    def __init__(self, database: Database, heard: Heard) -> None:
        """`heard` gets what other processes tell, and (QUEUE, ()) when something may have been missed."""
        self._database = database
        self._heard = heard
        self._name = secrets.token_hex(8)  # a pooler has backends' ids of its own
        self._pending: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.is_heard = False
        """Whether what others tell comes here."""
        self._ends: tuple[int, int] | None = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_read = self._ends[0]
        self._thread = threading.Thread(target=self._work, name="signals", daemon=True)

    def start(self) -> None:
        """Begin to listen, and to send what is told."""
        if not self._database.is_sqlite:
            self._thread.start()

    def tell(self, topic: str, *ids: str) -> None:
        """Have all other processes hear it, soon; several in one word. Nothing over SQLite."""
        if self._database.is_sqlite:
            return
        with self._lock:
            self._pending.setdefault(topic, set()).update(ids)
        self._wake()

    def close(self) -> None:
        """Send what is pending, and listen no more. May be called twice."""
        with self._lock:
            already, self._closed = self._closed, True
        if already:
            return
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            ends, self._ends = self._ends, None
        for end in ends or ():
            os.close(end)

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # it has enough to wake up by
            if self._ends is not None:
                os.write(self._ends[1], b"x")

    def _work(self) -> None:
        import psycopg

        while not self._closed:
            try:
                with self._database.listening() as connection:
                    self._converse(connection)
            except (psycopg.Error, ServiceError, OSError) as error:
                _LOG.info("nothing is heard of other processes: %s", str(error).strip().partition("\n")[0])
            self.is_heard = False
            if not self._closed:
                select.select([self._wake_read], [], [], _AGAIN_S)
                time.sleep(_GAP_S)

    def _converse(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"LISTEN {_CHANNEL}")
        self._probe()
        probe_ends = time.monotonic() + _PROBE_S
        while not self._closed:
            self._drain_pipe()
            self._send_pending(connection)
            for notify in connection.notifies(timeout=0):  # also what came with the answers to what was sent
                self._take(notify.payload)
            if not self.is_heard and time.monotonic() > probe_ends:
                probe_ends = float("inf")
                _LOG.warning("what other processes tell is not heard: a pooler is between here and PostgreSQL")
            select.select([connection.fileno(), self._wake_read], [], [], _LONGEST_S if self.is_heard else _PROBE_S)
        self._send_pending(connection)

    def _probe(self) -> None:
        """Tell ourselves something by another connection: it is heard unless somebody between us lends connections."""
        word = json.dumps([self._name, [_PROBE, []]])
        with self._database.begin() as connection:
            connection.execute(sa.select(sa.func.pg_notify(_CHANNEL, word)))

    def _send_pending(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        if pending:
            words = [{topic: ids} for topic, told in pending.items() for ids in _cut(sorted(told))]
            self._send(connection, words)
            time.sleep(_GAP_S)  # what comes meanwhile goes together

    def _send(self, connection: psycopg.Connection[Any], words: Iterable[dict[str, Any]]) -> None:
        for word in words:
            text = json.dumps([self._name, next(iter(word.items()))])
            connection.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, text))

    def _take(self, payload: str) -> None:
        try:
            who, (topic, ids) = json.loads(payload)
        except (ValueError, TypeError):
            return
        if who == self._name:
            if topic == _PROBE and not self.is_heard:
                self.is_heard = True
                self._heard(QUEUE, ())  # whatever was told before
        elif topic in (QUEUE, ENDED, EVENTS):
            self._heard(topic, tuple(map(str, ids)))

    def _drain_pipe(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)


def _cut(ids: list[str]) -> list[list[str]]:
    return [ids[i : i + _AT_ONCE] for i in range(0, len(ids), _AT_ONCE)] or [[]]
