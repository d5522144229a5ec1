"""The scheduler's slots, memory and lanes, with jobs that only wait to be ended."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from relaxc.service.errors import Cancelled, ServiceError
from relaxc.service.jobs.blobs.local import LocalBlobs
from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.database import events, instances, transitions
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import JobKind, JobRow
from relaxc.service.jobs.database.tables import owners
from relaxc.service.jobs.job import State
from relaxc.service.jobs.queue import scheduler
from relaxc.service.jobs.queue.budget import Budget, estimate
from relaxc.service.jobs.queue.executor import Executor
from relaxc.service.jobs.queue.running import Running
from relaxc.service.jobs.queue.scheduler import Scheduler
from tests.jobs.rows import find, put
from tests.waiting import PATIENCE_S, until

GIB = 1 << 30
OFF = {"id": "k_off", "name": "off", "weight": 1.0, "quotas": {}, "webhook_secret": "", "created": 0.0, "disabled": 1.0}


class Workers:
    """Runs jobs that end when `finish` names them, or when they are cancelled."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        compiles: int,
        tunes: int,
        limit_bytes: int,
        *,
        tunes_alone: bool = False,
    ) -> None:
        self.database = database
        self._gone = Database(f"sqlite:///{blobs.local.root}/gone/service.sqlite3")
        self._gone.close()
        shutil.rmtree(blobs.local.root / "gone")
        self._blobs = blobs
        self._finished: dict[str, threading.Event] = {}
        self.slow: set[str] = set()
        """Jobs that do not end when they are cancelled, while they are in it."""
        self.cut_off = 0
        """How many jobs from now on meet a database that is gone."""
        self.most_bytes = 0
        executor = Executor(database, self._work, lambda id: None)
        self.budget = Budget(limit_bytes)
        slots = {False: compiles, True: tunes}
        self.scheduler = Scheduler(database, "me", slots, self.budget, self._begin, executor, tunes_alone=tunes_alone)
        with database.begin() as connection:
            instances.register(connection, "me", "here", "folder")
        self.scheduler.start()

    def _begin(self, job: JobRow, memory_bytes: int) -> Running:
        return Running(job, memory_bytes, self.database, self._blobs, lambda id: None, lambda job, data: None)

    def _work(self, running: Running) -> Outcome:
        done = self._finished.setdefault(running.job.id, threading.Event())
        self.most_bytes = max(self.most_bytes, self.budget.taken_bytes)
        if self.cut_off:
            self.cut_off -= 1
            with self._gone.read() as connection:
                connection.execute(sa.select(1))
        while not done.wait(0.02):
            if running.cancellation.cancelled and running.job.id not in self.slow:
                raise Cancelled("it was cancelled")
        return Outcome(artifact="a" * 64)

    def finish(self, job: JobRow) -> None:
        self._finished.setdefault(job.id, threading.Event()).set()

    def until(self, job: JobRow, state: State) -> JobRow:
        self.scheduler.wake()
        deadline = time.monotonic() + PATIENCE_S
        while (row := find(self.database, job.id)).state is not state:
            assert time.monotonic() < deadline, row
            time.sleep(0.02)
        return row

    def close(self) -> None:
        self.slow.clear()
        self.scheduler.stop()
        self.scheduler.join()


Open = Callable[..., Workers]


@pytest.fixture
def workers(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    opened: list[Workers] = []

    def make(compiles: int = 1, tunes: int = 1, limit_bytes: int = 8 * GIB, *, tunes_alone: bool = False) -> Workers:
        blobs = Blobs(LocalBlobs(tmp_path_factory.mktemp("blobs")))
        opened.append(Workers(database, blobs, compiles, tunes, limit_bytes, tunes_alone=tunes_alone))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_no_more_run_than_there_are_slots(workers: Open, database: Database) -> None:
    jobs = [put(database) for _ in range(4)]
    pool = workers(compiles=2)
    pool.until(jobs[0], State.RUNNING)
    pool.until(jobs[1], State.RUNNING)
    time.sleep(0.3)
    assert [find(database, job.id).state for job in jobs[2:]] == [State.QUEUED] * 2
    pool.finish(jobs[0])
    pool.until(jobs[2], State.RUNNING)


def test_a_job_that_meets_a_database_that_is_gone_is_queued_again(workers: Open, database: Database) -> None:
    """PostgreSQL was killed while a job asked for its model: the job failed with `service-error`."""
    pool = workers()
    pool.cut_off = 1
    job = put(database)
    pool.finish(job)
    row = pool.until(job, State.SUCCEEDED)
    assert (row.attempts, row.epoch, pool.cut_off) == (1, 2, 0)


def test_a_tuning_that_runs_alone_has_its_turn_among_compiles_that_never_end(workers: Open, database: Database) -> None:
    """Nothing is beside it: it waits for those that run, no other begins meanwhile, and they go on by turns."""
    compiles = [put(database) for _ in range(4)]
    tunings = [put(database, kind=JobKind.TUNE) for _ in range(2)]
    pool = workers(compiles=2, tunes=2, tunes_alone=True)
    for first, then in ((tunings[0], compiles[:2]), (tunings[1], compiles[2:])):
        pool.until(first, State.RUNNING)
        time.sleep(0.3)
        assert all(find(database, job.id).state is State.QUEUED for job in then)
        pool.finish(first)
        for job in then:
            pool.until(job, State.RUNNING)
        if first is tunings[0]:
            pool.finish(then[0])
            pool.until(then[0], State.SUCCEEDED)
            time.sleep(0.3)
            assert find(database, tunings[1].id).state is State.QUEUED
            assert find(database, compiles[2].id).state is State.QUEUED
        for job in then:
            pool.finish(job)


def test_two_large_jobs_do_not_run_together(workers: Open, database: Database) -> None:
    pool = workers(compiles=3)
    large = [put(database, memory_bytes=5 * GIB, priority=9 - i) for i in range(2)]
    pool.until(large[0], State.RUNNING)
    small = put(database, memory_bytes=GIB)
    time.sleep(0.3)
    assert find(database, large[1].id).state is find(database, small.id).state is State.QUEUED
    pool.finish(large[0])
    pool.until(large[1], State.RUNNING)
    pool.until(small, State.RUNNING)
    assert pool.most_bytes <= 8 * GIB


def test_a_job_over_the_whole_budget_runs_alone(workers: Open, database: Database) -> None:
    pool = workers(compiles=3)
    small = put(database, memory_bytes=GIB)
    pool.until(small, State.RUNNING)
    huge, later = put(database, memory_bytes=100 * GIB, priority=5), put(database, memory_bytes=1)
    time.sleep(0.3)
    assert find(database, huge.id).state is State.QUEUED
    pool.finish(small)
    pool.until(huge, State.RUNNING)
    time.sleep(0.3)
    assert find(database, later.id).state is State.QUEUED
    pool.finish(huge)
    pool.until(later, State.RUNNING)


def test_tuning_has_its_own_slot_and_leaves_the_compiles_theirs(workers: Open, database: Database) -> None:
    pool = workers()
    tuning = [put(database, kind=JobKind.TUNE, memory_bytes=GIB, priority=100) for _ in range(3)]
    pool.until(tuning[0], State.RUNNING)
    compiling = put(database)
    pool.until(compiling, State.RUNNING)
    assert [find(database, job.id).state for job in tuning[1:]] == [State.QUEUED] * 2


def test_a_tuning_that_runs_alone_takes_turns_with_the_others(workers: Open, database: Database) -> None:
    pool = workers(compiles=2, tunes_alone=True)
    compiling = put(database)
    pool.until(compiling, State.RUNNING)
    first, second = (put(database, kind=JobKind.TUNE) for _ in range(2))
    time.sleep(1.0)  # what was looking at the queue meanwhile has not seen them, and would start what is put in next
    late = put(database)
    time.sleep(0.3)
    assert [find(database, job.id).state for job in (first, late)] == [State.QUEUED] * 2
    pool.finish(compiling)
    pool.until(first, State.RUNNING)
    time.sleep(0.3)
    assert find(database, late.id).state is State.QUEUED
    pool.finish(first)
    pool.until(late, State.RUNNING)
    assert find(database, second.id).state is State.QUEUED
    pool.finish(late)
    pool.until(second, State.RUNNING)


def test_a_tuning_that_nobody_may_begin_holds_up_no_slot(workers: Open, database: Database) -> None:
    with database.begin() as connection:
        connection.execute(sa.insert(owners).values(OFF))
    put(database, kind=JobKind.TUNE, owner="k_off")
    pool = workers(compiles=2, tunes_alone=True)
    for _ in range(2):
        pool.until(put(database), State.RUNNING)


def test_tuning_gives_its_memory_to_a_compile_and_comes_back(workers: Open, database: Database) -> None:
    pool = workers()
    tuning = put(database, kind=JobKind.TUNE, memory_bytes=3 * GIB)
    pool.until(tuning, State.RUNNING)
    compiling = put(database, memory_bytes=6 * GIB)
    pool.until(compiling, State.RUNNING)
    assert pool.until(tuning, State.QUEUED).attempts == 0
    pool.finish(compiling)
    assert pool.until(tuning, State.RUNNING).attempts == 1


def test_as_few_tunings_as_it_takes_give_way_and_the_youngest_first(workers: Open, database: Database) -> None:
    pool = workers(tunes=4)
    tuning = [put(database, kind=JobKind.TUNE, memory_bytes=GIB, priority=-i) for i in range(4)]
    for each in tuning:
        pool.until(each, State.RUNNING)
    compiling = put(database, memory_bytes=6 * GIB)
    pool.until(compiling, State.RUNNING)
    now = [find(database, each.id) for each in tuning]
    assert [row.state for row in now] == [State.RUNNING] * 2 + [State.QUEUED] * 2
    assert [row.epoch for row in now] == [1] * 4


def test_tuning_that_gave_way_waits_for_the_compile_that_it_gave_way_to(workers: Open, database: Database) -> None:
    """Also while another one takes its time to end: else it would take the memory back, and give way again."""
    pool = workers(tunes=2)
    tuning = [put(database, kind=JobKind.TUNE, memory_bytes=2 * GIB, priority=-i) for i in range(2)]
    for each in tuning:
        pool.until(each, State.RUNNING)
    pool.slow.add(tuning[0].id)
    compiling = put(database, memory_bytes=8 * GIB)
    pool.until(tuning[1], State.QUEUED)
    for _ in range(5):
        pool.scheduler.wake()
        time.sleep(0.1)
    assert (row := find(database, tuning[1].id)).state is State.QUEUED
    assert row.epoch == 1
    pool.slow.clear()
    pool.until(compiling, State.RUNNING)
    pool.finish(compiling)
    for each in tuning:
        assert pool.until(each, State.RUNNING).epoch == 2


def test_tuning_that_is_cancelled_while_it_gives_way_does_not_come_back(workers: Open, database: Database) -> None:
    pool = workers()
    tuning = put(database, kind=JobKind.TUNE, memory_bytes=3 * GIB)
    pool.until(tuning, State.RUNNING)
    until(lambda: pool.scheduler.find(tuning.id))  # the row says so first
    running = pool.scheduler.find(tuning.id)
    assert running is not None
    with database.begin() as connection:
        transitions.stop(connection, tuning.id, Cancelled("no"))
        running.cancel(ServiceError("tuning gives way to a compile"), give_back=True)
    assert pool.until(tuning, State.CANCELLED).error is not None
    with database.read() as connection:
        states = [event.data["state"] for event in events.read(connection, tuning.id, 0, 10)]
    assert states == ["running", "cancelled"]


def test_tuning_that_leaves_compiles_less_than_half_waits(workers: Open, database: Database) -> None:
    pool = workers(tunes=2)
    first, second = (put(database, kind=JobKind.TUNE, memory_bytes=3 * GIB) for _ in range(2))
    pool.until(first, State.RUNNING)
    time.sleep(0.3)
    assert find(database, second.id).state is State.QUEUED


def test_a_large_tuning_runs_where_nothing_else_does(workers: Open, database: Database) -> None:
    pool = workers()
    tuning = put(database, kind=JobKind.TUNE, memory_bytes=20 * GIB)
    pool.until(tuning, State.RUNNING)


def test_a_job_that_another_server_has_taken_is_ended_here(workers: Open, database: Database) -> None:
    pool = workers()
    job = put(database)
    pool.until(job, State.RUNNING)
    with database.begin() as connection:
        for lost in instances.bury(connection, ["me"]):
            transitions.recover(connection, lost)
    until(lambda: pool.scheduler.find(job.id) is None)
    assert find(database, job.id).state is State.QUEUED


def test_a_job_that_could_not_be_begun_is_not_stuck(
    workers: Open, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = workers()
    begin, calls = pool.scheduler._begin, iter([MemoryError()])

    def fails_once(job: JobRow, memory_bytes: int) -> Running:
        for error in calls:
            raise error
        return begin(job, memory_bytes)

    monkeypatch.setattr(pool.scheduler, "_begin", fails_once)
    job = put(database)
    pool.scheduler.wake()
    pool.finish(job)
    assert pool.until(job, State.SUCCEEDED).attempts == 2


def test_a_job_for_which_there_is_no_thread_waits_for_one(
    workers: Open, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_NO_THREAD_S", 0.5)
    start, failures = threading.Thread.start, iter([RuntimeError("can't start new thread")] * 2)

    def fails_twice(thread: threading.Thread) -> None:
        if thread.name.startswith("job-"):
            for failure in failures:
                raise failure
        start(thread)

    pool = workers()
    monkeypatch.setattr(threading.Thread, "start", fails_twice)
    job = put(database)
    pool.scheduler.wake()
    pool.finish(job)
    assert pool.until(job, State.SUCCEEDED).attempts == 1
    assert next(failures, None) is None
    until(lambda: pool.budget.taken_bytes == 0)  # given back when the job's end is known


def test_a_stop_does_not_wait_for_a_job_that_has_no_thread(
    workers: Open, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failed = threading.Thread.start, threading.Event()

    def fails(thread: threading.Thread) -> None:
        if thread.name.startswith("job-"):
            failed.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    pool = workers()
    monkeypatch.setattr(threading.Thread, "start", fails)
    job = put(database)
    pool.scheduler.wake()
    assert failed.wait(30)
    pool.close()
    assert (find(database, job.id).state, find(database, job.id).attempts) == (State.QUEUED, 0)


def test_estimates_grow_with_the_model_and_end_at_the_limit() -> None:
    small, large = estimate(JobKind.COMPILE, 1 << 20), estimate(JobKind.COMPILE, 1 << 30)
    assert 512 << 20 < small < large
    assert estimate(JobKind.COMPILE, 1 << 50) == 16 * GIB
    assert Budget(0).limit_bytes > GIB
