"""Requests through the queue: hits, misses, joins, limits, failures, and what is left on disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from relaxc.service.artifact.entry import Entry
from relaxc.service.artifact.key import key_for
from relaxc.service.artifact.store import Store
from relaxc.service.compiler import prepare
from relaxc.service.config import settings
from relaxc.service.errors import (
    Busy,
    Cancelled,
    CompileFailed,
    CompilerCrashed,
    DigestMismatch,
    ServiceError,
    UnsupportedModel,
)
from relaxc.service.jobs.job import Origin, State
from relaxc.service.jobs.local.queue import CompileQueue
from relaxc.service.lowering.target import resolve
from relaxc.service.process.limits import Limits
from relaxc.service.process.pool import Pool
from relaxc.service.process.workspace import Workspace
from relaxc.service.request import Calibration, CompileOptions, CompileRequest, ModelFormat, ModelRef, Precision
from tests.api.conftest import make_onnx
from tests.jobs.entries import seed_of
from tests.waiting import PATIENCE_S, until

LIMITS = Limits(timeout_s=60.0, memory_bytes=2 << 30, file_bytes=1 << 30)

Open = Callable[..., CompileQueue]
Asks = Callable[..., CompileRequest]
Count = Callable[[], int]


class Counting(Pool):
    """A pool that knows how many tasks it was given."""

    runs = 0

    def run(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        self.runs += 1
        return super().run(*arguments, **options)


@pytest.fixture(scope="module")
def pool() -> Iterator[Counting]:
    with Counting() as pool:
        yield pool


@pytest.fixture
def open_queue(tmp_path: Path, pool: Pool) -> Iterator[Open]:
    """Queues over stores in the test's folder, with this module's warm pool; no folder of a job is left at the end."""
    opened: list[tuple[CompileQueue, Workspace]] = []

    def make(cache: str = "cache", **options: Any) -> CompileQueue:
        root = tmp_path / cache
        workspace = Workspace(root / "jobs")
        entry = "tests.jobs.entries:by_seed"
        queue = CompileQueue(Store(root, 1 << 30), pool, workspace, limits=LIMITS, entry=entry, **options)
        opened.append((queue, workspace))
        return queue

    yield make
    for queue, workspace in opened:
        queue.close()
        assert [path.name for path in workspace.path.iterdir()] == ["lock"]
        workspace.close()


@pytest.fixture
def asks(tmp_path: Path) -> Asks:
    """A request whose child will run an entry; equal arguments give equal requests."""

    def make(entry: str = "made", model: str = "a", **shapes: int) -> CompileRequest:
        options = CompileOptions(seed=seed_of(entry), shapes=tuple((name, (size,)) for name, size in shapes.items()))
        reference = ModelRef(ModelFormat.ONNX, model * 64, 1, tmp_path / "m.onnx")
        return CompileRequest(reference, resolve("x86-64-v3"), options)

    return make


@pytest.fixture
def compiles(pool: Counting) -> Count:
    """How many compiles have run in this test."""
    before = pool.runs
    return lambda: pool.runs - before


def test_a_miss_is_compiled_and_kept_and_the_next_is_a_hit(open_queue: Open, asks: Asks, compiles: Count) -> None:
    queue, released = open_queue(), []
    first = queue.submit(asks(), release=lambda: released.append(1))
    entry = first.job.result(PATIENCE_S)
    second = queue.submit(asks(), release=lambda: released.append(2))
    assert (first.origin, second.origin) == (Origin.MISS, Origin.HIT)
    assert second.job.result(0).digest == entry.digest
    assert entry.path.read_bytes() == second.job.result(0).path.read_bytes()
    assert second.job.result(0).build["stages"] == {"build": 0.1}
    assert second.job.state is State.SUCCEEDED
    assert released == [1, 2]
    assert compiles() == 1


def test_a_job_tells_its_story_in_order_and_again(open_queue: Open, asks: Asks) -> None:
    job = open_queue().submit(asks()).job
    heard: list[int] = []
    job.listen(lambda event: heard.append(event.seq))
    job.result(PATIENCE_S)
    assert [event.seq for event in job.events] == list(range(1, len(job.events) + 1)) == heard
    kinds = [event.data.get("stage", event.data.get("state")) for event in job.events]
    assert kinds == ["running", "build", "build", "succeeded"]
    again: list[Any] = []
    job.listen(again.append, after=2)
    assert [event.seq for event in again] == heard[2:]
    assert job.created_s <= (job.started_s or 0) <= (job.finished_s or 0)
    assert job.stage == "build"


def test_equal_requests_at_the_same_time_are_compiled_once(open_queue: Open, asks: Asks, compiles: Count) -> None:
    queue = open_queue(workers=2)
    released: list[int] = []
    submissions = [queue.submit(asks(sleep_s=1), release=lambda: released.append(1)) for _ in range(5)]
    assert [s.origin for s in submissions] == [Origin.MISS, *[Origin.JOINED] * 4]
    assert len({id(s.job.result(PATIENCE_S)) for s in submissions}) == 1
    assert compiles() == 1
    assert len(released) == 5


def test_two_servers_that_share_a_store_compile_once(open_queue: Open, asks: Asks, compiles: Count) -> None:
    queues = [open_queue(), open_queue()]
    jobs = [queue.submit(asks(sleep_s=1)).job for queue in queues]
    assert len({job.result(PATIENCE_S).digest for job in jobs}) == 1
    assert compiles() == 1


def _written_to(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(opened.read(1))


def _replaced(file: Path) -> None:
    other = file.with_suffix(".new")
    other.write_bytes(file.read_bytes())
    other.replace(file)


@pytest.mark.parametrize("change", [_written_to, _replaced, Path.unlink])
@pytest.mark.parametrize("changed", ["net.onnx", "weights.bin"])
def test_a_model_that_changes_after_its_digest_is_not_kept_under_it(
    open_queue: Open, tmp_path: Path, change: Callable[[Path], None], changed: str
) -> None:
    path, queue = tmp_path / "net.onnx", open_queue()
    onnx.save(onnx.load_from_string(make_onnx(32)), path, save_as_external_data=True, location="weights.bin")
    for file in (path, tmp_path / "weights.bin"):
        os.utime(file, (0, 0))  # as the clock of a file system is coarse
    request = prepare(path, target="x86-64-v3", options=CompileOptions(seed=seed_of("made")))
    change(tmp_path / changed)
    with pytest.raises(DigestMismatch, match=f"{changed} changed while the model was compiled") as caught:
        queue.submit(request).job.result(PATIENCE_S)
    assert caught.value.fields["files"] == [str(tmp_path / changed)]
    assert queue.store.ls() == [] and queue.store.lookup(key_for(request)) is None


@pytest.mark.parametrize("change", [_written_to, _replaced])
@pytest.mark.parametrize("changed", ["plugin.py", "samples.npz"])
def test_a_file_of_an_option_that_changes_after_its_key_is_not_kept_under_it(
    open_queue: Open, asks: Asks, tmp_path: Path, change: Callable[[Path], None], changed: str
) -> None:
    queue, plugin, samples = open_queue(), tmp_path / "plugin.py", tmp_path / "samples.npz"
    for file in (plugin, samples):
        file.write_text("PASSES = {}")
        os.utime(file, (0, 0))
    asked = asks()
    given = Calibration(str(samples))
    options = replace(asked.options, plugins=(str(plugin),), precision=Precision.INT8, calibration=given)
    request = replace(asked, options=options)
    key = key_for(request)
    with queue.store.lock(key):  # the job has its key and waits
        job = queue.submit(request).job
        change(tmp_path / changed)
    with pytest.raises(DigestMismatch, match=f"{changed} changed while the model was compiled") as caught:
        job.result(PATIENCE_S)
    assert caught.value.fields["files"] == [str(tmp_path / changed)]
    assert queue.store.ls() == [] and queue.store.lookup(key) is None
    assert isinstance(queue.submit(request).job.result(PATIENCE_S), Entry)


def test_different_requests_are_different_jobs(open_queue: Open, asks: Asks, compiles: Count) -> None:
    queue = open_queue(workers=2)
    jobs = [queue.submit(asks(model=model)).job for model in "ab"]
    assert len({job.result(PATIENCE_S).digest for job in jobs}) == 2
    assert compiles() == 2


def test_equal_requests_in_two_stores_give_equal_bytes(open_queue: Open, asks: Asks, compiles: Count) -> None:
    entries = [open_queue(name).submit(asks()).job.result(PATIENCE_S) for name in ("one", "two")]
    assert compiles() == 2
    assert entries[0].path != entries[1].path
    assert entries[0].path.read_bytes() == entries[1].path.read_bytes()


def test_a_failure_is_told_to_everybody_and_not_kept(open_queue: Open, asks: Asks) -> None:
    queue = open_queue()
    for _ in range(2):
        submission = queue.submit(asks("refuse"), name="net.onnx")
        assert submission.origin is Origin.MISS
        with pytest.raises(UnsupportedModel, match="Frob"):
            submission.job.result(PATIENCE_S)
        assert submission.job.state is State.FAILED
        assert submission.job.events[-1].data["error"]["code"] == "unsupported-model"
    assert queue.store.lookup(key_for(asks("refuse"))) is None


def test_a_crash_has_a_command_that_repeats_it(open_queue: Open, asks: Asks) -> None:
    with pytest.raises(CompilerCrashed) as caught:
        open_queue().submit(asks("segfault"), name="my net.onnx").job.result(PATIENCE_S)
    assert caught.value.fields["repro"].startswith("relaxc compile 'my net.onnx' -o out.so --target x86-64-v3")


@pytest.mark.parametrize("entry", ["link_out", "path_out"])
def test_a_child_cannot_put_another_file_into_the_store(open_queue: Open, asks: Asks, entry: str) -> None:
    queue = open_queue()
    with pytest.raises(CompileFailed, match="no regular file"):
        queue.submit(asks(entry)).job.result(PATIENCE_S)
    assert queue.store.ls() == []


def test_more_than_the_queue_holds_is_busy(open_queue: Open, asks: Asks) -> None:
    queue, released = open_queue(queue_max=1), []
    running = queue.submit(asks("sleep")).job
    until(lambda: running.state is State.RUNNING)
    waiting = queue.submit(asks(model="b")).job
    with pytest.raises(Busy, match="1 compiles wait") as caught:
        queue.submit(asks(model="c"), release=lambda: released.append(1))
    assert caught.value.fields == {"waiting": 1, "limit": 1}
    assert released == [1]
    assert queue.counts() == (1, 1)
    assert queue.submit(asks(model="b")).job is waiting  # to join is not to wait
    running.cancel()
    waiting.result(PATIENCE_S)


def test_cancel_ends_a_running_and_a_waiting_job(open_queue: Open, asks: Asks) -> None:
    queue = open_queue()
    running, waiting = (queue.submit(asks("sleep", model=model)).job for model in "ab")
    until(lambda: running.stage == "build")
    for job in (waiting, running):
        job.cancel()
        with pytest.raises(Cancelled):
            job.result(PATIENCE_S)
        assert job.state is State.CANCELLED
        running.cancel()
    assert waiting.started_s is None


def test_close_ends_every_job_and_refuses_new_ones(open_queue: Open, asks: Asks) -> None:
    queue = open_queue()
    jobs = [queue.submit(asks("sleep", model=model)).job for model in "ab"]
    until(lambda: jobs[0].stage == "build")
    queue.close()
    for job in jobs:
        with pytest.raises(ServiceError, match="shutting down"):
            job.result(0)
    with pytest.raises(ServiceError, match="shutting down"):
        queue.submit(asks(model="c"))


def test_with_a_dump_a_hit_is_compiled_all_the_same(
    open_queue: Open, asks: Asks, compiles: Count, tmp_path: Path
) -> None:
    queue = open_queue()
    first = queue.submit(asks()).job.result(PATIENCE_S)
    dumped = queue.submit(asks(), dump_dir=tmp_path / "dump")
    assert dumped.origin is Origin.MISS
    assert dumped.job.result(PATIENCE_S).digest == first.digest
    assert compiles() == 2


def test_force_compiles_a_hit_again_to_the_same_bytes(open_queue: Open, asks: Asks, compiles: Count) -> None:
    queue = open_queue()
    first = queue.submit(asks()).job.result(PATIENCE_S)
    again = queue.submit(asks(), force=True)
    assert again.origin is Origin.MISS
    assert again.job.result(PATIENCE_S).digest == first.digest
    assert compiles() == 2


@pytest.mark.slow
def test_submitting_from_many_threads(open_queue: Open, asks: Asks, compiles: Count) -> None:
    queue = open_queue(workers=2)
    results: list[str] = []

    def ask(model: str) -> None:
        results.append(queue.submit(asks(model=model)).job.result(PATIENCE_S).digest)

    threads = [threading.Thread(target=ask, args=(model,)) for model in "abcabcabcabc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 12
    assert len(set(results)) == 3
    assert compiles() == 3


@pytest.mark.slow
def test_one_compiles_here_though_the_server_beside_it_runs_none(
    open_queue: Open, asks: Asks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAXC_WORKERS", "0")
    settings.cache_clear()
    try:
        open_queue(workers=None).submit(asks()).job.result(PATIENCE_S)
    finally:
        monkeypatch.undo()
        settings.cache_clear()
