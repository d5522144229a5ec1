"""What moves a job from state to state once it is claimed, or before: forward only, as the database compares and sets.

Each function is one UPDATE whose WHERE names the states that it may start from, and for a running job the epoch of the
claim. A claim alone makes a new epoch (`claims`), and none comes twice: who has lost its claim can change nothing, also
where the same server, or the same attempt, has the job again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.errors import Cancelled, RelaxcError, ServerDied, StorageQuotaExceeded
from relaxc.service.jobs.database import artifacts, clock, deliveries, events, quotas, records, shares, tuning_times
from relaxc.service.jobs.database.claims import PLACED
from relaxc.service.jobs.database.jobs import find, get
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import JobRow, RecordsRow
from relaxc.service.jobs.database.tables import job_logs, jobs
from relaxc.service.jobs.job import Claim, State

__all__ = [
    "MAX_ATTEMPTS",
    "add_records",
    "end",
    "fail_waiting",
    "finish_now",
    "give_back",
    "held",
    "join",
    "recover",
    "stop",
]

MAX_ATTEMPTS = 2
"""A job whose server died is tried once more."""


def end(connection: Connection, job: JobRow, outcome: Outcome) -> JobRow | None:
    """End a job that runs here; return None, and change nothing, when this claim on it is over.

    One whose artifact or records do not fit into what its owner may keep fails. Its trials stay, which `settle_ended`
    makes a record set of once there is room.
    """
    seconds = clock.now() - (job.started or clock.now())
    outcome = _as_far_as_it_fits(connection, job, outcome)
    if not _end(connection, job.id, outcome, *held(job.claim)):
        return None
    weight = connection.scalar(sa.select(jobs.c.weight).where(jobs.c.id == job.id))
    shares.charge(connection, job.owner, float(weight or 1.0), seconds)
    tuning_times.note(connection, job)
    return get(connection, job.id)


def _as_far_as_it_fits(connection: Connection, job: JobRow, outcome: Outcome) -> Outcome:
    """The owner is held before the job: who joins it with these records has them locked."""
    try:
        if outcome.records is not None:
            records.admit(connection, outcome.records)
        if outcome.artifact is not None:
            allowed = quotas.hold(connection, job.owner)
            more = artifacts.growth(connection, job.owner, outcome.artifact, outcome.artifact_bytes)
            quotas.admit_bytes(connection, job.owner, allowed, more)
    except StorageQuotaExceeded as error:
        return Outcome(error=outcome.error or error)
    return outcome


def add_records(connection: Connection, row: RecordsRow) -> None:
    """Give an ended tuning, and its owner, what it had won until then; one that has records keeps them.

    Raise StorageQuotaExceeded where it does not fit into what the owner may keep.
    """
    records.admit(connection, row)
    ended = sa.update(jobs).where(jobs.c.id == row.job, jobs.c.finished.is_not(None), jobs.c.records.is_(None))
    if connection.execute(ended.values(records=row.digest)).rowcount:
        records.insert(connection, row)


def finish_now(connection: Connection, id: str, outcome: Outcome) -> JobRow:
    """End a job that has just been put in and that nobody has to run."""
    _end(connection, id, outcome, jobs.c.state == State.QUEUED)
    return get(connection, id)


def fail_waiting(connection: Connection, id: str, error: RelaxcError) -> bool:
    """End a job that waits; return whether it did."""
    return _end(connection, id, Outcome(error=error), jobs.c.state == State.QUEUED)


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

    One that is to be cancelled ends instead. Returns it as it is now, None when this claim on it is over.
    """
    if not _queue_or_cancel(connection, job.claim, reason, attempts=jobs.c.attempts - 1):
        return None
    tuning_times.note(connection, job)
    return get(connection, job.id)


def recover(connection: Connection, claim: Claim, heard: Mapping[str, float] = MappingProxyType({})) -> JobRow | None:
    """Settle the job of a claim whose server is gone: cancelled if that was wished, queued again, or failed.

    A tuning has taken its owner's time until its server was `heard` of last, in Unix time by the server's id; until now
    where that is not known. Returns the job as it is now, None when the claim is over: it was settled already, and may
    run elsewhere.
    """
    ran_on = connection.scalar(sa.select(jobs.c.instance).where(jobs.c.id == claim[0]).with_for_update())
    job = find(connection, claim[0])
    if job is None:
        return None
    if job.cancelling or job.attempts < MAX_ATTEMPTS:
        changed = _queue_or_cancel(connection, claim, "the server died")
    else:
        died = ServerDied(f"the server died {job.attempts} times while it ran this job", stage=job.stage)
        changed = _end(connection, job.id, Outcome(error=died), *held(claim))
    if not changed:
        return None
    tuning_times.note(connection, job, heard.get(ran_on) if ran_on else None)
    return get(connection, job.id)


def held(claim: Claim) -> tuple[Any, ...]:
    """Return the condition that nobody has ended this claim."""
    return jobs.c.state == State.RUNNING, jobs.c.epoch == claim[1]


def _queue_or_cancel(connection: Connection, claim: Claim, reason: str, **columns: Any) -> bool:
    """Whoever cancels at the same moment has marked it before the first UPDATE, or finds it queued after it."""
    if _queue_again(connection, claim, reason, **columns):
        return True
    cancelled = Outcome(error=Cancelled("the job was cancelled"))
    return _end(connection, claim[0], cancelled, *held(claim), jobs.c.cancelling)


def _queue_again(connection: Connection, claim: Claim, reason: str, **more: Any) -> bool:
    told = [(clock.now(), {"event": "state", "state": State.QUEUED.value, "reason": reason})]
    columns = {"state": State.QUEUED, "instance": None, "stage": None, "done": None, "total": None, "started": None}
    if not events.append(connection, claim[0], told, *held(claim), ~jobs.c.cancelling, **columns, **more):
        return False
    _forget_log(connection, claim[0])
    return True


def _end(connection: Connection, id: str, outcome: Outcome, *where: Any) -> bool:
    columns = outcome.columns()
    told = {name: value for name, value in columns.items() if value is not None and name != "result"}
    last = {"event": "state", "state": outcome.state.value, **told}
    finished = clock.now()
    columns = {**columns, "state": outcome.state, "finished": finished, "instance": None, **PLACED}
    if not events.append(connection, id, [(finished, last)], *where, **columns):
        return False
    _forget_log(connection, id)
    job = get(connection, id)
    if outcome.artifact is not None:
        artifacts.own(connection, job.owner, outcome.artifact, outcome.artifact_bytes)
    if outcome.records is not None:
        records.insert(connection, outcome.records)
    deliveries.insert(connection, job)
    return True


def _forget_log(connection: Connection, id: str) -> None:
    """What it printed while it ran is a blob by now, where its server lives."""
    connection.execute(sa.delete(job_logs).where(job_logs.c.job == id))
