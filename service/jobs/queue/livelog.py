"""What a running job prints, on its way into the database, where a server on another machine finds it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database import job_logs
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobRow
from relaxc.service.process.plain import open_plain

__all__ = ["LiveLog"]

_LOG = logging.getLogger("relaxc.jobs")
_PAUSE_S = 1.0
_PIECE_BYTES = 64 << 10
_MAX_BYTES = 1 << 20
_MORE = b"\n... the rest is there when the job has ended ...\n"


class LiveLog:
    """The log of one claim on a job: a piece a second at most, of the first mebibyte. One thread calls it."""

    def __init__(self, database: Database, job: JobRow, is_wanted: Callable[[], bool]) -> None:
        """Nothing is written while it is not wanted, as nobody else could be asked for it."""
        self._database = database
        self._job = job
        self._is_wanted = is_wanted
        self._start = 0
        self._looked = time.monotonic()

    def flush(self, path: Path) -> None:
        """Write what has come since the last time."""
        if time.monotonic() - self._looked < _PAUSE_S or self._start >= _MAX_BYTES:
            return
        self._looked = time.monotonic()
        try:
            if not (piece := self._piece(path)) or not self._is_wanted():
                return
            with self._database.begin() as connection:
                if job_logs.append(connection, self._job, self._start, piece):
                    self._start += len(piece)
        except (ServiceError, OSError) as error:
            _LOG.warning("the log of job %s is not told: %s", self._job.id, error)

    def _piece(self, path: Path) -> bytes:
        file = open_plain(path)
        if file is None:
            return b""
        with file:
            file.seek(self._start)
            piece = file.read(_PIECE_BYTES)
        return piece + _MORE if self._start + len(piece) >= _MAX_BYTES else piece
