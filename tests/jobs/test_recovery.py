"""What a `kill -9` of a server leaves, and what the next one makes of it: real processes, both databases."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from relaxc.service.jobs.database import jobs
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import LOCAL_OWNER, JobRow
from relaxc.service.jobs.job import State
from relaxc.service.jobs.queue.orphans import remove_orphans
from relaxc.service.process.workspace import Workspace
from tests.jobs.conftest import BY_SEED, OpenBackend
from tests.jobs.durable_entries import SEARCHED
from tests.jobs.entries import seed_of
from tests.jobs.queue.test_trials import told_by
from tests.processes import name_of
from tests.waiting import PATIENCE_S
from tests.waiting import until as wait_for

ROOT = Path(__file__).parent.parent.parent


class Server:
    """A server process, and the jobs that it was told to submit."""

    def __init__(self, cache: Path, url: str, *entries: str, **settings: object) -> None:
        environment = {f"RELAXC_{name.upper()}": str(value) for name, value in settings.items()}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.durable_server", cache, url, BY_SEED, *map(_asked, entries)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        *ids, last = _until_ready(self.process.stdout)
        self.ids = [line.strip() for line in ids]
        assert last == "ready\n", f"the server ended with {self.process.wait()} before it was ready"

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        """SIGKILL; afterwards no process below it is left."""
        below = self.children()
        self.process.kill()
        self.close()
        _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
        assert not alive

    def close(self) -> None:
        """Ends it in order, if it still runs."""
        self.process.communicate(timeout=PATIENCE_S)


def _asked(entry: str) -> str:
    return entry if entry == "tune" else str(seed_of(entry))


def _until_ready(lines: Iterable[str]) -> Iterator[str]:
    """The lines up to the one that says so; all of them, and an empty one, of a server that ended before."""
    for line in lines:
        yield line
        if line == "ready\n":
            return
    yield ""


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path, database_url: str) -> Iterator[Start]:
    servers: list[Server] = []

    def make(*entries: str, cache: str = "cache", **settings: object) -> Server:
        servers.append(Server(tmp_path / cache, database_url, *entries, **settings))
        return servers[-1]

    yield make
    for server in servers:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGCONT)
            server.close()


@pytest.fixture
def look(database_url: str, start: Start) -> Iterator[Callable[[str], JobRow]]:
    """Reads a job without being a server."""
    opened: list[Database] = []

    def find(id: str) -> JobRow:
        if not opened:
            opened.append(Database(database_url))
        with opened[0].read() as connection:
            return jobs.get(connection, id)

    yield find
    for database in opened:
        database.close()


Look = Callable[[str], JobRow]


def until(look: Look, id: str, is_so: Callable[[JobRow], bool], timeout_s: float = PATIENCE_S) -> JobRow:
    deadline = time.monotonic() + timeout_s
    while not is_so(row := look(id)):
        assert time.monotonic() < deadline, row
        time.sleep(0.05)
    return row


def in_stage(row: JobRow) -> bool:
    return row.state is State.RUNNING and row.stage == "build"


@pytest.mark.slow
def test_a_job_is_tried_twice_and_no_more(start: Start, look: Look, tmp_path: Path) -> None:
    first = start("sleep")
    (id,) = first.ids
    until(look, id, in_stage)
    first.kill()
    row = look(id)
    assert (row.state, row.attempts) == (State.RUNNING, 1)  # nobody has looked yet
    second = start()
    row = until(look, id, lambda row: in_stage(row) and row.attempts == 2)
    second.kill()
    third = start()
    row = until(look, id, lambda row: row.ended)
    assert (row.state, (row.error or {})["code"], row.attempts) == (State.FAILED, "server-died", 2)
    third.close()
    assert not list((tmp_path / "cache" / "jobs").iterdir())
    assert not list((tmp_path / "cache" / "staging").glob("*"))


@pytest.mark.sampled("sqlite")
def test_waiting_jobs_are_done_by_the_next_server(start: Start, look: Look, open_backend: OpenBackend) -> None:
    first = start("sleep", "made")
    sleeping, waiting = first.ids
    until(look, sleeping, in_stage)
    assert look(waiting).state is State.QUEUED
    first.kill()
    backend = open_backend(workers=2)
    row = until(look, waiting, lambda row: row.ended)
    assert row.state is State.SUCCEEDED, row.error
    backend.store.verify(str(row.artifact))
    backend.jobs.cancel(LOCAL_OWNER, sleeping)
    assert until(look, sleeping, lambda row: row.ended).state is State.CANCELLED


@pytest.mark.sampled("sqlite")
def test_a_cancel_that_a_server_did_not_live_to_see_holds(
    start: Start, look: Look, open_backend: OpenBackend, tmp_path: Path
) -> None:
    first = start("sleep")
    (id,) = first.ids
    until(look, id, in_stage)
    pause(first, tmp_path)
    second = open_backend("another cache")  # it does not know the first one's folder, and its lease is not over
    second.jobs.cancel(LOCAL_OWNER, id)
    assert look(id).cancelling
    first.process.send_signal(signal.SIGCONT)
    first.kill()
    open_backend()
    assert until(look, id, lambda row: row.ended).state is State.CANCELLED


@pytest.mark.slow
def test_a_tuning_outlives_every_server(start: Start, look: Look, database: Database) -> None:
    """`kill -9` of two servers, each of which had done three trials: the third does what is left."""
    server = start("tune")
    (id,) = server.ids
    for told in range(3, SEARCHED, 3):
        wait_for(lambda told=told: told_by(database, id) == told)
        server.kill()
        server = start()
    row = until(look, id, lambda row: row.ended)
    assert row.state is State.SUCCEEDED, row.error
    assert (row.result or {})["known"] == SEARCHED - 3
    server.close()


def pause(server: Server, folder: Path) -> None:
    """Stops a server, but not while it has SQLite's one lock: nobody else could write then, which is another story."""
    while True:
        server.process.send_signal(signal.SIGSTOP)
        file = folder / "service.sqlite3"
        if not file.exists():
            return
        with closing(sqlite3.connect(file, timeout=0.2)) as connection, suppress(sqlite3.OperationalError):
            connection.execute("BEGIN IMMEDIATE")
            return
        server.process.send_signal(signal.SIGCONT)
        time.sleep(0.1)


@pytest.mark.slow
def test_a_silent_server_loses_its_jobs_and_cannot_end_them(start: Start, look: Look, tmp_path: Path) -> None:
    """SIGSTOP is what a long pause of a virtual machine is: the server comes back, and finds its job taken."""
    first = start("sleep", server_lease_s=2)
    (id,) = first.ids
    until(look, id, in_stage)
    pause(first, tmp_path)
    second = start(cache="another", server_lease_s=2)
    row = until(look, id, lambda row: row.attempts == 2)
    assert row.state is State.FAILED or row.instance is not None
    first.process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + PATIENCE_S
    while any("relaxc-job" in name_of(process) for process in first.children()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert look(id).attempts == 2
    second.kill()
    first.close()


def test_a_half_upload_is_gone_on_with_or_dropped_by_age(
    start: Start, open_backend: OpenBackend, tmp_path: Path
) -> None:
    backend = open_backend()
    with backend.uploads.open(LOCAL_OWNER, "a" * 64, offset=0, total=10) as part:
        part.write(b"12345")
    backend.close()
    again = open_backend()
    state = again.uploads.state(LOCAL_OWNER, "a" * 64)
    assert state is not None
    assert (state.offset, state.total) == (5, 10)
    assert again.uploads.sweep(3600) == 0
    time.sleep(0.02)
    assert again.uploads.sweep(0.01) == 1
    assert again.uploads.state(LOCAL_OWNER, "a" * 64) is None


def test_bytes_without_a_row_are_removed(database: Database, open_backend: OpenBackend) -> None:
    backend = open_backend()
    for name in ("models/" + "a" * 64 + "/m.onnx", "records/" + "b" * 64 + "/records.jsonl", "jobs/j_x/log.txt"):
        backend.blobs.put_bytes(name, b"x")
    assert remove_orphans(database, backend.blobs.local) == []
    assert len(remove_orphans(database, backend.blobs.local, grace_s=-1)) == 3
    assert not [path for path in backend.blobs.local.root.rglob("*") if path.is_file()]


def test_a_half_kept_artifact_is_removed(open_backend: OpenBackend, tmp_path: Path) -> None:
    backend = open_backend()
    half = tmp_path / "cache" / "staging" / "half"
    half.mkdir(parents=True)
    (half / "model.so").write_bytes(b"x")
    backend.sweep()
    assert half.exists()  # somebody may be writing it
    os.utime(half, (0, 0))
    backend.sweep()
    assert not half.exists()


def test_a_copy_of_a_cache_is_another_place(tmp_path: Path, database: Database) -> None:
    from relaxc.service.jobs.queue.keeper import Keeper

    (tmp_path / "cache").mkdir()
    places = []
    for cache in ("cache", "copy"):
        with Workspace(tmp_path / cache / "jobs") as workspace:
            places.append(Keeper(database, workspace, tmp_path / cache, 10.0)._place)
        if cache == "cache":
            shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    assert (tmp_path / "copy" / "place").read_text() == (tmp_path / "cache" / "place").read_text()
    assert places[0] != places[1]


def test_two_caches_have_two_places_and_one_cache_has_one(tmp_path: Path, database: Database) -> None:
    from relaxc.service.jobs.queue.keeper import Keeper

    places = []
    for cache in ("one", "one", "two"):
        with Workspace(tmp_path / cache / "jobs") as workspace:
            places.append(Keeper(database, workspace, tmp_path / cache, 10.0)._place)
    assert places[0] == places[1] != places[2]
