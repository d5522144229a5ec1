"""Jobs go to the machines that can take them, and say what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from relaxc.service.config import settings
from relaxc.service.jobs.database import claims, events, instances, jobs, tables
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobKind, JobRow
from relaxc.service.jobs.job import State
from relaxc.service.jobs.workers.accepting import Accepting
from relaxc.service.jobs.workers.fleet import Fleet
from relaxc.service.jobs.workers.needs import Needs
from relaxc.service.jobs.workers.placement import Placement
from relaxc.service.lowering.target import resolve
from tests.jobs.rows import find, put
from tests.jobs.workers.kinds import ARM, HASWELL, HOPPER, ZEN

ALL = {"zen": ZEN, "haswell": HASWELL, "hopper": HOPPER, "arm": ARM}


def needing(database: Database, needs: Needs, **columns: object) -> str:
    return put(database, needs=needs.to_dict(), needs_key=needs.key, **columns).id


def join(database: Database, name: str, **about: object) -> None:
    with database.begin() as connection:
        instances.register(connection, name, name, name, machine=ALL[name].to_dict(), **about)


def taken(database: Database, name: str, *, tune: bool = False) -> str | None:
    """What this machine's next claim takes."""
    with database.begin() as connection:
        accepts = Accepting(ALL[name])(connection)[tune]
        claimed = claims.claim(connection, name, tune, lambda job: True, accepts=accepts)
    return None if claimed is None else claimed[0].id


def test_a_claim_takes_what_the_machine_has(database: Database) -> None:
    for name in ALL:
        join(database, name)
    arm = needing(database, Needs(resolve("aarch64")), priority=3)
    zen = needing(database, Needs(resolve("x86-64-v4")), priority=2)
    gpu = needing(database, Needs(resolve("cuda-sm90"), measures=True), kind=JobKind.TUNE)
    anywhere = put(database).id
    assert taken(database, "hopper", tune=True) == gpu
    assert taken(database, "haswell", tune=True) is None
    assert taken(database, "haswell") == anywhere
    assert taken(database, "hopper") is None
    assert (taken(database, "zen"), taken(database, "arm")) == (zen, arm)


@pytest.mark.parametrize(
    "needs",
    [
        {"later": 1},
        {"runs": {"name": "x"}, "measures": False, "device": False, "tools": []},
        {"runs": None, "measures": False, "device": False, "tools": 3},
        {"runs": resolve("cuda-sm80,cuda-sm90").to_dict(), "measures": True, "device": False, "tools": []},
    ],
    ids=["a later version's", "no target", "no list", "several targets measured"],
)
def test_needs_that_cannot_be_told_stop_no_other_claim(database: Database, needs: dict[str, object]) -> None:
    join(database, "hopper")
    stuck = put(database, needs=needs, needs_key="0" * 64, priority=9).id
    other = needing(database, Needs(resolve("x86-64-v3")))
    assert taken(database, "hopper") == other
    assert taken(database, "hopper") is None
    assert Placement(database, Fleet(database))() == [stuck]
    found = find(database, stuck)
    assert found is not None
    assert "relaxc of the version that wrote what the job needs" in str(found.to_dict()["missing"])


@pytest.fixture
def place(database: Database) -> Callable[[], list[str]]:
    return Placement(database, Fleet(database))


def told(database: Database, id: str) -> list[dict[str, object]]:
    with database.read() as connection:
        return [event.data for event in events.read(connection, id, 0, 100)]


def test_a_job_that_nobody_can_take_says_so_until_somebody_can(
    database: Database, place: Callable[[], list[str]]
) -> None:
    join(database, "haswell")
    stuck, fine = needing(database, Needs(resolve("x86-64-v4"))), put(database).id
    assert place() == [stuck]
    assert find(database, stuck).missing == [f"CPU feature avx512{each}" for each in ("bw", "cd", "dq", "f", "vl")]
    assert place() == []
    assert find(database, fine).missing is None
    join(database, "zen")
    assert place() == [stuck]
    assert find(database, stuck).missing is None
    assert [event["missing"] == [] for event in told(database, stuck)] == [False, True]


def test_a_kind_of_job_that_nobody_runs_waits_for_a_worker(database: Database, place: Callable[[], list[str]]) -> None:
    join(database, "zen", slots=1, tune_slots=0)
    tuning = put(database, kind=JobKind.TUNE).id
    assert place() == [tuning]
    assert find(database, tuning).missing == ["a worker that runs tunings"]


def test_a_worker_that_dies_leaves_jobs_that_say_what_they_wait_for(
    database: Database, place: Callable[[], list[str]]
) -> None:
    join(database, "hopper")
    join(database, "zen")
    waiting = needing(database, Needs(resolve("cuda-sm90")))
    assert place() == []
    with database.begin() as connection:
        instances.bury(connection, ["hopper"])
    assert place() == [waiting]
    assert find(database, waiting).missing == ["a CUDA device of compute capability 9.0 (there is none)"]


def test_what_waits_too_long_fails_by_name(
    database: Database, place: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, fresh_settings: None
) -> None:
    join(database, "arm")
    late = needing(database, Needs(resolve("x86-64-v2")))
    place()
    monkeypatch.setenv("RELAXC_PLACEMENT_WAIT_S", "60")
    settings.cache_clear()
    assert place() == []
    with database.begin() as connection:
        since = tables.jobs.c.missing_since
        connection.execute(sa.update(tables.jobs).where(tables.jobs.c.id == late).values(missing_since=since - 61))
    assert place() == [late]
    job: JobRow = find(database, late)
    assert job.error is not None
    assert (job.state, job.error["code"], job.error["retryable"]) == ("failed", "no-worker", True)
    assert "a CPU of architecture x86_64 (this one is aarch64)" in job.error["message"]


def test_how_long_one_waits_is_no_matter_of_a_servers_clock(
    database: Database, place: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    join(database, "arm")
    stuck = needing(database, Needs(resolve("x86-64-v2")))
    assert place() == [stuck]
    ahead = time.time() + 86400
    monkeypatch.setattr(time, "time", lambda: ahead)
    assert place() == []
    assert find(database, stuck).state is State.QUEUED


@pytest.fixture
def fresh_settings() -> Iterator[None]:
    yield
    settings.cache_clear()


def test_what_waits_is_counted_by_what_it_needs(database: Database) -> None:
    join(database, "haswell")
    placement = Placement(database, Fleet(database))
    needing(database, Needs(resolve("x86-64-v4")))
    put(database)
    put(database)
    placement()
    assert placement.waiting() == {("x86-64-v4", False): 1, ("compiler", True): 2}
    with database.read() as connection:
        assert len(jobs.waiting_needs(connection)) == 2
