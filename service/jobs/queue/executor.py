"""Does one job that the scheduler has started, and writes down how it ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import structlog

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database import transitions
from relaxc.service.jobs.database.engine import Database, is_no_answer
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import JobRow
from relaxc.service.jobs.job import State
from relaxc.service.jobs.job_error import job_error
from relaxc.service.jobs.queue.running import Running
from relaxc.service.process.runner import RunnerLost

__all__ = ["Executor"]

_LOG = logging.getLogger("relaxc.jobs")
_AGAIN_S = 1.0


class Executor:
    """`work` does a job and returns what came of it; `told` is called with it when its row has changed."""

    def __init__(self, database: Database, work: Callable[[Running], Outcome], told: Callable[[JobRow], None]) -> None:
        self._database = database
        self._work = work
        self._told = told
        self._closed = threading.Event()

    def close(self) -> None:
        """Wait no longer for a database that does not answer: the jobs are then recovered as a dead server's."""
        self._closed.set()

    def __call__(self, running: Running) -> None:
        """Whatever happens, the job ends, is queued again, or was no longer ours."""
        with structlog.contextvars.bound_contextvars(job=running.job.id, owner=running.job.owner):
            running.is_in(State.RUNNING)
            outcome = self._outcome(running)
            while not self._settled(running, outcome):
                if self._closed.wait(_AGAIN_S):
                    _LOG.error("job %s: how it ended could not be written down", running.job.id)
                    return
        self._told(running.job)

    def _outcome(self, running: Running) -> Outcome | None:
        """What came of it; None where that is not known, as who ran it is lost."""
        try:
            return self._work(running)
        except RunnerLost as error:
            _LOG.warning("job %s: %s", running.job.id, error)
            return None
        except Exception as error:  # noqa: BLE001  # whatever it is, it is written down
            if isinstance(error, ServiceError) and is_no_answer(error):  # no fault of the job's
                running.cancel(error, give_back=True)
            return Outcome(error=job_error(error, running.job.id, reason=running.reason))

    def _settled(self, running: Running, outcome: Outcome | None) -> bool:
        running.trials.flush()
        job = running.job
        try:
            with running.events.taken() as told, self._database.begin() as connection:
                if told:
                    told.write(connection)
                if running.give_back and (outcome is None or outcome.error is not None):
                    now = transitions.give_back(connection, job, str(running.reason))
                elif outcome is None:
                    now = transitions.recover(connection, job.claim)
                else:
                    now = transitions.end(connection, job, outcome)
        except ServiceError as error:
            _LOG.warning("job %s: %s", job.id, error)
            return False
        if now is None:
            _LOG.warning("job %s has been taken from this server", job.id)
            running.is_in(State.QUEUED)
        else:
            _LOG.info("job %s %s", now.id, now.state)
            running.is_in(now.state, now.error)
        return True
