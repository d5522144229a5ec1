"""Whoever has lost its claim on a job changes nothing, in whatever order two servers do what they do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.engine import Connection

from relaxc.service.errors import CompileFailed
from relaxc.service.jobs.database import artifacts, events, instances, records, transitions
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import LOCAL_OWNER, JobKind, JobRow, RecordsRow
from relaxc.service.jobs.job import State
from relaxc.service.jobs.queue.eventlog import EventLog
from relaxc.service.jobs.queue.files import blob_of
from relaxc.service.jobs.queue.running import Running
from tests.jobs.rows import claim, find, put
from tests.jobs.stepped import Held, OpenStepped, begun, give_way

MIB = 1 << 20
STAGE = {"event": "stage", "stage": "late", "state": "start"}


def outcome_of(held: Held, letter: str) -> Outcome:
    """An end that gives the owner an artifact and a record set."""
    job = held.running.job
    made = RecordsRow(job.owner, letter * 64, "made", 1, 1, 0.0, 0.0, job.id)
    return Outcome(artifact=letter * 64, records=made, result={"by": letter})


def leave_log(tmp_path: Path, text: str) -> Callable[[Running], None]:
    """What a job's thread does when its process has ended."""

    def keep(running: Running) -> None:
        folder = tmp_path / f"work-{text}"
        folder.mkdir()
        (folder / "log.txt").write_text(text)
        with running.at(folder):
            pass

    return keep


def owned(database: Database, owner: str) -> set[str]:
    """The first letters of what the owner was given."""
    with database.read() as connection:
        sets = {row.digest[0] for row in records.owned(connection, owner, 10)}
        return sets | {letter for letter in "ab" if artifacts.has(connection, owner, letter * 64)}


def tell(log: EventLog) -> bool:
    """Whether a stage is written down."""
    log.take(STAGE)
    return log.flush()


def story(database: Database, id: str) -> list[object]:
    with database.read() as connection:
        rows = events.read(connection, id, 0, 100)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return [row.data.get("state") for row in rows]


def test_no_two_claims_have_one_epoch_though_none_counts_as_an_attempt(database: Database) -> None:
    put(database)
    found = []
    for _ in range(3):
        job = claim(database)
        assert job is not None
        found.append((job.epoch, job.attempts))
        with database.begin() as connection:
            assert transitions.give_back(connection, job)
    assert found == [(1, 1), (2, 1), (3, 1)]


def test_a_claim_is_over_also_where_the_same_server_has_the_job_again(database: Database) -> None:
    put(database)
    first = claim(database)
    assert first is not None
    with database.begin() as connection:
        transitions.give_back(connection, first)
    second = claim(database)
    assert second is not None
    assert (second.id, second.instance, second.attempts) == (first.id, first.instance, first.attempts)
    log = EventLog(database, first)
    assert not tell(log)
    assert log.lost
    with database.begin() as connection:
        assert transitions.end(connection, first, Outcome(artifact="a" * 64)) is None
        assert transitions.give_back(connection, first) is None
        assert transitions.recover(connection, first.claim) is None
    assert find(database, first.id) == second
    assert tell(EventLog(database, second))


def test_a_thread_that_ends_late_takes_away_nothing_but_its_own(servers: OpenStepped) -> None:
    """With two slots for tuning the server could begin the job again while the thread of its last claim still ends."""
    server = servers("one")
    id = put(server.database, kind=JobKind.TUNE, memory_bytes=5 * MIB).id
    older = begun(server, tune=True)
    give_way(older)
    older.settle()
    assert find(server.database, id).state is State.QUEUED
    newer = server.begin(tune=True)
    older.leave()
    newer = newer or begun(server, tune=True)
    assert server._scheduler.find(id) is newer.running
    assert server._scheduler._held._budget.taken_bytes == 5 * MIB
    server.look()
    assert not newer.running.cancellation.cancelled
    newer.end(outcome_of(newer, "b"))
    ended = find(server.database, id)
    assert ended.state is State.SUCCEEDED, ended.error
    assert server._scheduler._held._budget.taken_bytes == 0


def test_a_job_is_not_begun_where_its_last_claim_still_ends_and_holds_up_no_other(servers: OpenStepped) -> None:
    server, other = servers("one"), servers("two")
    first = put(server.database, kind=JobKind.TUNE, priority=1)
    older = begun(server, tune=True)
    give_way(older)
    older.settle()
    second = put(server.database, kind=JobKind.TUNE)
    assert begun(server, tune=True).running.job.id == second.id
    assert server.begin(tune=True) is None
    assert begun(other, tune=True).running.job.id == first.id


@pytest.mark.parametrize("when", ["queued", "running", "ended"])
@pytest.mark.parametrize("how", ["well", "badly", "given back"])
def test_a_server_that_was_taken_for_dead_changes_nothing(
    servers: OpenStepped, tmp_path: Path, when: str, how: str
) -> None:
    one, two = servers("one"), servers("two")
    id = put(one.database, kind=JobKind.TUNE, owner=LOCAL_OWNER.id).id
    stale = begun(one, tune=True)
    assert two.bury_others() == [id]
    holder = None if when == "queued" else begun(two, tune=True)
    if when == "ended" and holder is not None:
        holder.do(leave_log(tmp_path, "right"))
        holder.end(outcome_of(holder, "b"))
    before, told = find(one.database, id), story(one.database, id)

    stale.do(lambda running: running.take(STAGE))
    stale.running.flush()
    assert stale.running.cancellation.cancelled  # it gives up
    stale.do(leave_log(tmp_path, "wrong"))
    if how == "given back":
        stale.running.give_back = True
    stale.end(outcome_of(stale, "a") if how == "well" else None)

    assert find(one.database, id) == before
    assert story(one.database, id) == told
    if when == "queued":
        holder = begun(two, tune=True)
    assert holder is not None
    if when != "ended":
        holder.do(leave_log(tmp_path, "right"))
        holder.end(outcome_of(holder, "b"))
    row, log = find(one.database, id), two.jobs.log(LOCAL_OWNER, id)
    assert (row.state, row.artifact, row.result) == (State.SUCCEEDED, "b" * 64, {"by": "b"})
    assert owned(one.database, row.owner) == {"b"}
    assert log is not None
    with log:
        assert log.read() == b"right"


def test_files_of_a_tuning_are_those_of_the_claim_that_won(servers: OpenStepped) -> None:
    one, two = servers("one"), servers("two")
    id = put(one.database, kind=JobKind.TUNE, owner=LOCAL_OWNER.id).id
    stale = begun(one, tune=True)
    two.bury_others()
    holder = begun(two, tune=True)
    for held, text in ((holder, b"right"), (stale, b"wrong")):
        one.blobs.put_bytes(blob_of(held.running.job.claim, "report.json"), text)
    holder.end(outcome_of(holder, "b"))
    stale.end(outcome_of(stale, "a"))
    assert two.jobs.file(LOCAL_OWNER, id, "report.json").read_bytes() == b"right"


def test_a_job_that_nobody_ran_here_is_left_to_who_runs_it_now(
    servers: OpenStepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what is this server's and what is done about it, another server has taken it and begun."""
    one, two = servers("one"), servers("two")
    id = put(one.database).id
    monkeypatch.setattr(one._scheduler, "_begin", fails)
    with pytest.raises(MemoryError):
        one.begin()
    begin, holders = one.database.begin, []

    @contextmanager
    def late() -> Iterator[Connection]:
        if not holders:
            assert two.bury_others() == [id]
            holders.append(begun(two))
        with begin() as connection:
            yield connection

    monkeypatch.setattr(one.database, "begin", late)
    one.look()
    row = find(one.database, id)
    assert (row.state, row.claim) == (State.RUNNING, holders[0].running.job.claim)
    holders[0].end(outcome_of(holders[0], "b"))
    ended = find(one.database, id)
    assert ended.state is State.SUCCEEDED, ended.error


def fails(job: JobRow, memory_bytes: int) -> Running:
    raise MemoryError


def test_a_job_that_was_found_without_a_server_is_left_to_who_has_it_by_then(servers: OpenStepped) -> None:
    """The server was silent, not dead: it gives the job back, and another begins it, before it is settled."""
    one, two = servers("one"), servers("two")
    id = put(one.database, kind=JobKind.TUNE).id
    silent = begun(one, tune=True)
    with two.database.begin() as connection:
        orphans = instances.bury(connection, [one._keeper.id])
    assert orphans == [silent.running.job.claim]
    give_way(silent)
    silent.end()
    holder = begun(two, tune=True)
    assert holder.running.job.attempts == silent.running.job.attempts
    with two.database.begin() as connection:
        assert [transitions.recover(connection, orphan) for orphan in orphans] == [None]
    assert find(two.database, id) == holder.running.job


def test_a_server_that_others_have_given_up_begins_nothing_until_they_know_of_it(servers: OpenStepped) -> None:
    """It would be begun a second time at once: a job on a server that nobody knows is taken for a dead one's."""
    one, two = servers("one"), servers("two")
    two.bury_others()
    id = put(one.database).id
    assert one.begin() is None
    assert find(one.database, id).state is State.QUEUED
    one.beat()
    held = begun(one)
    two._keeper._lease_s = 1e9
    assert two._keeper.recover() == []
    assert find(one.database, id).claim == held.running.job.claim


def test_what_a_cancel_marks_is_the_claim_that_is(servers: OpenStepped) -> None:
    one, two = servers("one"), servers("two")
    id = put(one.database, owner=LOCAL_OWNER.id).id
    stale = begun(one)
    two.bury_others()
    holder = begun(two)
    one.jobs.cancel(LOCAL_OWNER, id)
    stale.end()
    assert find(one.database, id).state is State.RUNNING
    two.look()
    assert holder.running.cancellation.cancelled
    holder.end()
    assert find(one.database, id).state is State.CANCELLED


@pytest.mark.parametrize("seed", range(3))
def test_in_whatever_order_only_the_last_claim_is_heard(database: Database, seed: int) -> None:
    """Steps of three servers in an order that the seed decides; whoever has no claim changes nothing."""
    draw = random.Random(seed)
    id = put(database, kind=JobKind.TUNE).id
    claims: list[JobRow] = []
    current: JobRow | None = None
    for _ in range(60):
        before, step = find(database, id), draw.choice(["claim", "claim", "tell", "give back", "die", "end"])
        if step == "claim":
            got = claim(database, lane=True, instance=draw.choice(["i0", "i1", "i2"]))
            assert (got is None) is (current is not None)
            if got is not None:
                current = got
                claims.append(got)
            continue
        late = [one for one in claims if one is not current]
        who = draw.choice(late) if step == "end" and late else draw.choice(claims) if claims else None
        if who is None or (who is current and (step == "end" or (step == "die" and before.attempts > 1))):
            continue  # that would be the end of the story
        changed = take_step(database, who, step)
        assert changed is (who is current)
        if not changed:
            assert find(database, id) == before
        elif step != "tell":
            current = None
    assert find(database, id).epoch == len(claims) > 3


def take_step(database: Database, who: JobRow, step: str) -> bool:
    """Whether it changed something."""
    if step == "tell":
        return tell(EventLog(database, who))
    with database.begin() as connection:
        if step == "give back":
            return transitions.give_back(connection, who) is not None
        if step == "die":
            return transitions.recover(connection, who.claim) is not None
        return transitions.end(connection, who, Outcome(error=CompileFailed("late"))) is not None


def test_a_job_whose_node_is_lost_is_begun_once_more(servers: OpenStepped, database: Database) -> None:
    server = servers("a")
    put(database)
    for attempt in (1, 2):
        held = server.begin()
        assert held is not None and held.running.job.attempts == attempt
        held.do(lambda running: running.take(STAGE))
        held.lose()
    id = held.running.job.id
    assert story(database, id) == ["running", "start", "queued", "running", "start", "failed"]
    job = find(database, id)
    assert job.error is not None and job.error["code"] == "server-died"


def test_a_job_lost_while_its_server_stops_has_lost_no_attempt(servers: OpenStepped, database: Database) -> None:
    server = servers("a")
    put(database)
    held = server.begin()
    assert held is not None
    held.running.cancel(CompileFailed("the service is shutting down"), give_back=True)
    held.lose()
    job = find(database, held.running.job.id)
    assert (job.state, job.attempts) == (State.QUEUED, 0)
