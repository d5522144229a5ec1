"""What moves a job from state to state: forward only, enforced where the database compares and sets.

Each function is one UPDATE whose WHERE names the states that it may start from, and for a running job the server and
the attempt, so that a server that others have given up can change nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from service.artifact.entry import Entry
from service.errors import Cancelled, RelaxcError, ServerDied
from service.jobs.database import artifacts, deliveries, events, shares
from service.jobs.database.jobs import get
from service.jobs.database.rows import JobKind, JobRow
from service.jobs.database.tables import jobs
from service.jobs.job import State
from service.process.task import finite

__all__ = [
    "MAX_ATTEMPTS",
    "Candidate",
    "Lane",
    "Outcome",
    "claim",
    "end",
    "finish_now",
    "give_back",
    "held",
    "join",
    "recover",
    "stop",
]

MAX_ATTEMPTS = 2
"""A job whose server died is tried once more."""

Lane = bool
"""True is the lane of tuning, False that of all other jobs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: without an error it succeeded."""

    artifact: str | None = None
    records: str | None = None
    result: dict[str, Any] | None = None
    error: RelaxcError | None = None

    @staticmethod
    def of(entry: Entry) -> Outcome:
        """Return the end of a compile; its result is the record of the build, as a local compile has it but for `host`.

        That is the server's own name, which is no matter of its clients'.
        """
        build = {name: value for name, value in entry.build.items() if name != "host"}
        return Outcome(artifact=entry.digest, result={"build": finite(build)})

    @property
    def state(self) -> State:
        """The state that the job is in afterwards."""
        if self.error is None:
            return State.SUCCEEDED
        return State.CANCELLED if isinstance(self.error, Cancelled) else State.FAILED

    def columns(self) -> dict[str, Any]:
        """Return what the job's row keeps of it."""
        error = None if self.error is None else finite(json.loads(json.dumps(self.error.to_dict(), default=str)))
        return {"artifact": self.artifact, "records": self.records, "result": self.result, "error": error}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that could run next."""

    id: str
    owner: str
    weight: float
    memory_bytes: int
    tag: float


def claim(
    connection: Connection, instance: str, lane: Lane, fits: Callable[[Candidate], bool]
) -> tuple[JobRow, int] | None:
    """Start the job whose turn it is on `instance`, if it `fits`, and return it with its memory estimate in bytes.

    One that does not fit holds up its lane, so that small jobs cannot starve a large one. The caller holds a lock.
    """
    chosen = _next(connection, lane)
    if chosen is None or not fits(chosen):
        return None
    told = [(time.time(), {"event": "state", "state": State.RUNNING.value})]
    columns = {"state": State.RUNNING, "instance": instance, "started": time.time(), "attempts": jobs.c.attempts + 1}
    if not events.append(connection, chosen.id, told, jobs.c.state == State.QUEUED, **columns):
        return None
    shares.start(connection, chosen.owner, chosen.weight, chosen.tag)
    return get(connection, chosen.id), chosen.memory_bytes


def _next(connection: Connection, lane: Lane) -> Candidate | None:
    """Each owner's first by priority, then the owner whose turn it is.

    A request that runs already, for another owner, is left until that has ended: then the store has the answer.
    """
    running = sa.alias(jobs)
    twin = sa.exists().where(running.c.state == State.RUNNING, running.c.request_key == jobs.c.request_key)
    place = sa.func.row_number().over(partition_by=jobs.c.owner, order_by=(jobs.c.priority.desc(), jobs.c.number))
    in_lane = jobs.c.kind == JobKind.TUNE if lane else jobs.c.kind != JobKind.TUNE
    ranked = sa.select(
        *(jobs.c.id, jobs.c.owner, jobs.c.weight, jobs.c.memory_bytes, jobs.c.number), place.label("place")
    ).where(jobs.c.state == State.QUEUED, in_lane, ~twin)
    heads = ranked.subquery()
    rows = connection.execute(sa.select(heads).where(heads.c.place == 1)).all()
    tags = shares.start_tags(connection, [row.owner for row in rows])
    first = min(rows, key=lambda row: (tags[row.owner], row.number), default=None)
    if first is None:
        return None
    return Candidate(first.id, first.owner, first.weight, first.memory_bytes, tags[first.owner])


def end(connection: Connection, job: JobRow, outcome: Outcome) -> JobRow | None:
    """End a job that runs here; return None, and change nothing, when it is no longer this server's."""
    seconds = time.time() - (job.started or time.time())
    if not _end(connection, job.id, outcome, *held(job)):
        return None
    weight = connection.scalar(sa.select(jobs.c.weight).where(jobs.c.id == job.id))
    shares.charge(connection, job.owner, float(weight or 1.0), seconds)
    return get(connection, job.id)


def finish_now(connection: Connection, id: str, outcome: Outcome) -> JobRow:
    """End a job that has just been put in and that nobody has to run."""
    _end(connection, id, outcome, jobs.c.state == State.QUEUED)
    return get(connection, id)


def join(connection: Connection, id: str, priority: int) -> JobRow | None:
    """Give a job that lives at least this priority, and lock its row; return None when it has ended."""
    live = jobs.c.id == id, jobs.c.state.in_([State.QUEUED, State.RUNNING])
    higher = sa.case((jobs.c.priority < priority, priority), else_=jobs.c.priority)
    found = connection.execute(sa.update(jobs).where(*live).values(priority=higher)).rowcount
    return get(connection, id) if found else None


def stop(connection: Connection, id: str, error: Cancelled) -> State | None:
    """Cancel a job: a queued one ends, a running one is marked for its server. Return the state that it was in."""
    # Locked first: one that is queued again meanwhile would be found in neither state by two UPDATEs.
    state = connection.scalar(sa.select(jobs.c.state).where(jobs.c.id == id).with_for_update())
    if state == State.QUEUED:
        _end(connection, id, Outcome(error=error), jobs.c.state == State.QUEUED)
        return State.QUEUED
    marked = sa.update(jobs).where(jobs.c.id == id, jobs.c.state == State.RUNNING).values(cancelling=True)
    return State.RUNNING if connection.execute(marked).rowcount else None


def give_back(connection: Connection, job: JobRow, reason: str = "the server stops") -> JobRow | None:
    """Queue a job again that this server starts no more, or stops in the middle in order: that is no attempt.

    One that is to be cancelled ends instead. Returns it as it is now, None when it is no longer this server's.
    """
    changed = _queue_or_cancel(connection, job.id, reason, job.attempts - 1, *held(job))
    return get(connection, job.id) if changed else None


def recover(connection: Connection, id: str) -> JobRow:
    """Settle a running job whose server is gone: cancelled if that was wished, queued again, or failed."""
    job = get(connection, id)
    still = jobs.c.state == State.RUNNING
    if job.cancelling or job.attempts < MAX_ATTEMPTS:
        _queue_or_cancel(connection, id, "the server died", job.attempts, still)
    else:
        died = ServerDied(f"the server died {job.attempts} times while it ran this job", stage=job.stage)
        _end(connection, id, Outcome(error=died), still)
    return get(connection, id)


def held(job: JobRow) -> tuple[Any, ...]:
    """Return the condition that `job`, as this server started it, is still its own."""
    return jobs.c.state == State.RUNNING, jobs.c.instance == job.instance, jobs.c.attempts == job.attempts


def _queue_or_cancel(connection: Connection, id: str, reason: str, attempts: int, *where: Any) -> bool:
    """Whoever cancels at the same moment has marked it before the first UPDATE, or finds it queued after it."""
    if _queue_again(connection, id, reason, attempts, *where, ~jobs.c.cancelling):
        return True
    return _end(connection, id, Outcome(error=Cancelled("the job was cancelled")), *where, jobs.c.cancelling)


def _queue_again(connection: Connection, id: str, reason: str, attempts: int, *where: Any) -> bool:
    told = [(time.time(), {"event": "state", "state": State.QUEUED.value, "reason": reason})]
    columns = {"state": State.QUEUED, "instance": None, "stage": None, "done": None, "total": None, "started": None}
    return events.append(connection, id, told, *where, attempts=attempts, **columns)


def _end(connection: Connection, id: str, outcome: Outcome, *where: Any) -> bool:
    columns = outcome.columns()
    told = {name: value for name, value in columns.items() if value is not None and name != "result"}
    last = {"event": "state", "state": outcome.state.value, **told}
    finished = time.time()
    columns = {**columns, "state": outcome.state, "finished": finished, "instance": None}
    if not events.append(connection, id, [(finished, last)], *where, **columns):
        return False
    job = get(connection, id)
    if outcome.artifact is not None:
        artifacts.own(connection, job.owner, outcome.artifact)
    deliveries.insert(connection, job)
    return True
