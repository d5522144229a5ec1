"""A task in a child process: what it is given, how it can die, and that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from relaxc.service.errors import (
    Cancelled,
    CompileError,
    CompileFailed,
    CompilerCrashed,
    CompilerOutOfDisk,
    CompilerOutOfMemory,
    CompilerTimeout,
    ServiceError,
    StoreUnwritable,
    UnsupportedModel,
)
from relaxc.service.process.flavour_zygote import FlavourZygote, ZygoteGone
from relaxc.service.process.limits import Limits
from relaxc.service.process.pool import Cancellation, Pool
from relaxc.service.process.sandbox.confinement import Confinement
from relaxc.service.process.task import Flavour, Task
from tests.disks import small_disk
from tests.namespaces import families, outside
from tests.waiting import PATIENCE_S, gone, until

ROOT = Path(__file__).parents[2]
LIMITS = Limits(timeout_s=60.0, memory_bytes=2 << 30, file_bytes=8 << 20)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        pool.warm(Flavour.ONNX)
        yield pool


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., Task]:
    def make(entry: str, *, limits: Limits = LIMITS, flavour: Flavour = Flavour.ONNX, **payload: Any) -> Task:
        return Task(f"tests.jobs.entries:{entry}", payload, tmp_path, flavour, limits, repro="relaxc compile m.onnx")

    return make


def ignore(event: dict[str, Any]) -> None:
    """For tests that look at the end only."""


def all_gone(pids: list[int]) -> bool:
    """Whether none of these processes runs any more; they sleep for ten minutes where nobody kills them."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return gone(found)


class Watched:
    """A run in a thread: its events as they come, its end when it has ended."""

    def __init__(self, pool: Pool, task: Task) -> None:
        self.events: list[dict[str, Any]] = []
        self.cancellation = Cancellation()
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(pool, task))
        self._thread.start()

    def _run(self, pool: Pool, task: Task) -> None:
        try:
            pool.run(task, self._take, cancellation=self.cancellation)
        except BaseException as error:  # noqa: BLE001  # told to the test
            self.error = error

    def _take(self, event: dict[str, Any]) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def pids(self) -> list[int]:
        """The processes that the entry `sleep` says it has."""
        return outside(self.own_pids())

    def own_pids(self) -> list[int]:
        """Those processes by the ids that they themselves know."""
        with self._changed:
            assert self._changed.wait_for(lambda: any("pids" in e for e in self.events), PATIENCE_S)
        return next(event["pids"] for event in self.events if "pids" in event)

    def ended(self) -> BaseException | None:
        """What it raised."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.error


def test_a_task_gives_its_events_and_its_result(pool: Pool, task: Callable[..., Task]) -> None:
    events: list[dict[str, Any]] = []
    assert pool.run(task("echo", a=[1, {"b": None}]), events.append) == {"payload": {"a": [1, {"b": None}]}}
    assert [event["event"] for event in events] == ["stage", "progress", "stage"]


def test_a_child_has_limits_a_session_a_folder_and_no_descriptors_of_others(
    pool: Pool, task: Callable[..., Task], tmp_path: Path
) -> None:
    facts = pool.run(task("report"), ignore)["facts"]
    assert facts["session"] == facts["pid"]
    assert (facts["data"], facts["fsize"], facts["core"]) == (LIMITS.memory_bytes, LIMITS.file_bytes, 0)
    assert Path(facts["cwd"]) == tmp_path
    assert Path(facts["tmp"]).is_relative_to(tmp_path)
    assert facts["oom_score_adj"] == "1000"
    assert not facts["torch"]
    assert facts["files"].count("socket") == 1
    assert len(facts["files"]) <= 6, facts["files"]  # stdio, the socket, the listing itself, the zygote's log


@pytest.mark.sampled("onnx")
@pytest.mark.parametrize("flavour", Flavour)
def test_a_zygote_has_one_thread_when_it_forks(flavour: Flavour, task: Callable[..., Task]) -> None:
    with Pool() as pool:
        facts = pool.run(task("report", flavour=flavour), ignore)["facts"]
        assert facts["torch"] is (flavour is Flavour.PT2)
        assert psutil.Process(pool.pids()[flavour]).num_threads() == 1


def test_a_segfault_is_a_crash_with_stage_signal_log_and_repro(pool: Pool, task: Callable[..., Task]) -> None:
    with pytest.raises(CompilerCrashed, match="SIGSEGV in stage schedule") as caught:
        pool.run(task("segfault"), ignore)
    fields = caught.value.fields
    assert (fields["stage"], fields["signal"], fields["repro"]) == ("schedule", "SIGSEGV", "relaxc compile m.onnx")
    assert "about to crash" in fields["log_tail"]
    assert any("Fatal Python error: Segmentation fault" in line for line in fields["log_tail"])
    assert any("entries.py" in line and "segfault" in line for line in fields["log_tail"])


@pytest.mark.parametrize(("entry", "text"), [("abort", "SIGABRT"), ("leave", "without a result")])
def test_other_deaths_are_crashes(pool: Pool, task: Callable[..., Task], entry: str, text: str) -> None:
    with pytest.raises(CompilerCrashed, match=text):
        pool.run(task(entry), ignore)


def test_an_exit_code_is_told(pool: Pool, task: Callable[..., Task]) -> None:
    with pytest.raises(CompilerCrashed, match="exit code 3"):
        pool.run(task("leave", code=3), ignore)


@pytest.mark.parametrize("entry", ["hog", "hog_in_cxx"])
def test_memory_has_a_limit(pool: Pool, task: Callable[..., Task], entry: str) -> None:
    limits = Limits(timeout_s=60.0, memory_bytes=512 << 20, file_bytes=1 << 20)
    with pytest.raises(CompilerOutOfMemory) as caught:
        pool.run(task(entry, limits=limits), ignore)
    assert caught.value.fields["repro"]


@pytest.mark.parametrize("entry", ["hog_in_children", "hog_shared"])
def test_memory_of_all_processes_has_a_limit(pool: Pool, task: Callable[..., Task], entry: str) -> None:
    """Each of them has less; without a control group their guard counts."""
    limits = Limits(timeout_s=PATIENCE_S, memory_bytes=1 << 30, file_bytes=2 << 30)
    amounts = {"count": 4, "each_bytes": 400 << 20, "bytes": 3 << 29}
    with pytest.raises(CompilerOutOfMemory) as caught:
        pool.run(task(entry, limits=limits, **amounts), ignore)
    assert caught.value.fields["limit_bytes"] == 1 << 30


def test_processes_have_a_limit(pool: Pool, task: Callable[..., Task]) -> None:
    """Whether the kernel counts them for this user, which it does not for root, or the guard."""
    limits = replace(LIMITS, timeout_s=PATIENCE_S)
    crowd = replace(task("crowd", limits=limits), confinement=Confinement(own_user=False))
    with pytest.raises(CompileError, match=r"processes|BlockingIOError"):
        pool.run(crowd, ignore)


def test_files_have_a_limit(pool: Pool, task: Callable[..., Task], tmp_path: Path) -> None:
    with pytest.raises(CompilerOutOfDisk, match="size limit") as caught:
        pool.run(task("big_file"), ignore)
    assert "RELAXC_COMPILE_FILE_BYTES" in caught.value.remedy
    assert (tmp_path / "big").stat().st_size == LIMITS.file_bytes


@pytest.mark.parametrize("how", ["many", "removed", "deep", "closed"])
def test_the_files_of_a_task_have_a_limit_together(
    pool: Pool, task: Callable[..., Task], tmp_path: Path, how: str
) -> None:
    """Also those that it has removed and still has open, and those that it hides from who counts."""
    limits = Limits(timeout_s=PATIENCE_S, memory_bytes=2 << 30, file_bytes=8 << 20, disk_bytes=32 << 20)
    if how == "closed" and os.geteuid() == 0:
        pytest.skip("nothing is closed to root")
    try:
        with pytest.raises(CompilerOutOfDisk, match="their limit of 33554432 bytes") as caught:
            pool.run(task("fill", limits=limits, how=how), ignore)
    finally:  # folders that are closed, or too deep for the rmtree by which pytest removes those of older runs
        tmp_path.chmod(0o700)
        subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)
    assert "RELAXC_COMPILE_DISK_BYTES" in caught.value.remedy


def test_a_task_that_leaves_too_much_has_failed(pool: Pool, task: Callable[..., Task]) -> None:
    """Also where it ended before it was counted."""
    limits = Limits(timeout_s=60.0, memory_bytes=2 << 30, file_bytes=8 << 20, disk_bytes=1 << 20)
    with pytest.raises(CompilerOutOfDisk):
        pool.run(task("fill", limits=limits, how="once"), ignore)


def test_a_task_with_many_files_is_ended_where_the_disk_has_little_left(
    pool: Pool, task: Callable[..., Task], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 64 << 20) as folder:
        limits = Limits(timeout_s=PATIENCE_S, memory_bytes=2 << 30, file_bytes=8 << 20, disk_floor_bytes=48 << 20)
        assert pool.run(replace(task("echo", limits=limits), workdir=folder), ignore) == {"payload": {}}
        (folder / "of another").write_bytes(bytes(20 << 20))
        with pytest.raises(StoreUnwritable, match="too little left"):
            pool.run(replace(task("fill", limits=limits, how="some"), workdir=folder), ignore)


def test_a_full_disk_is_named(pool: Pool, task: Callable[..., Task], tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as folder, pytest.raises(StoreUnwritable, match="the disk is full"):
        pool.run(replace(task("fill", how="once"), workdir=folder), ignore)


def test_a_hang_ends_at_the_time_limit_with_everything_it_started(pool: Pool, task: Callable[..., Task]) -> None:
    limits = Limits(timeout_s=8.0, memory_bytes=1 << 30, file_bytes=1 << 20)
    run = Watched(pool, task("sleep", limits=limits))
    pids = run.pids()
    error = run.ended()
    assert isinstance(error, CompilerTimeout)
    assert "limit of 8 s in stage build" in str(error)
    assert error.fields["log_tail"] == ["sleeping"]
    assert all_gone(pids)


def test_cancel_kills_everything(pool: Pool, task: Callable[..., Task]) -> None:
    run = Watched(pool, task("sleep"))
    pids = run.pids()
    run.cancellation.cancel()
    assert isinstance(run.ended(), Cancelled)
    assert all_gone(pids)


def test_a_task_cancelled_before_it_starts_does_not_start(pool: Pool, task: Callable[..., Task]) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(Cancelled, match="before it started"):
        pool.run(task("echo"), ignore, cancellation=cancellation)


def test_kill_9_of_the_child(pool: Pool, task: Callable[..., Task]) -> None:
    run = Watched(pool, task("sleep"))
    pids = run.pids()
    os.kill(pids[0], signal.SIGKILL)
    error = run.ended()
    assert isinstance(error, CompilerCrashed)
    assert (error.fields["signal"], error.fields["stage"]) == ("SIGKILL", "build")
    assert all_gone(pids)
    assert pool.run(task("echo"), ignore) == {"payload": {}}


def test_kill_9_of_the_init(pool: Pool, task: Callable[..., Task]) -> None:
    run = Watched(pool, task("sleep"))
    pids = run.pids()
    init = psutil.Process(pids[0]).parent()
    if init is None or init.name() != "relaxc-init":
        pytest.skip("needs PID namespaces")
    init.kill()
    error = run.ended()
    assert isinstance(error, CompilerCrashed)
    assert error.fields["signal"] == "SIGKILL"
    assert all_gone(pids)
    assert pool.run(task("echo"), ignore) == {"payload": {}}


def test_kill_9_of_the_guard(pool: Pool, task: Callable[..., Task]) -> None:
    run = Watched(pool, task("sleep"))
    pids = run.pids()
    guard = next(each for each in psutil.Process(pids[0]).parents() if each.name() == "relaxc-guard")
    guard.kill()
    assert isinstance(run.ended(), CompilerCrashed)
    assert all_gone(pids)  # also the one that left the session
    assert pool.run(task("echo"), ignore) == {"payload": {}}


def test_kill_9_of_the_zygote_does_not_touch_a_running_task_and_the_pool_heals(
    pool: Pool, task: Callable[..., Task]
) -> None:
    run = Watched(pool, task("sleep", seconds=1.0))
    pids = run.pids()
    zygote = pool.pids()[Flavour.ONNX]
    os.kill(zygote, signal.SIGKILL)
    assert pool.run(task("echo"), ignore) == {"payload": {}}
    assert pool.pids()[Flavour.ONNX] != zygote
    assert isinstance(run.ended(), CompilerCrashed)  # it sleeps on, and then leaves without a result
    assert all_gone(pids)


@pytest.mark.slow
def test_a_zygote_killed_while_it_imports_is_replaced(task: Callable[..., Task]) -> None:
    with Pool() as pool:
        pool.warm(Flavour.ONNX)
        os.kill(pool.pids()[Flavour.ONNX], signal.SIGKILL)
        assert pool.run(task("echo"), ignore) == {"payload": {}}


def test_who_waits_for_a_zygote_that_another_thread_has_given_up_is_told_that_it_is_gone() -> None:
    zygote = FlavourZygote(Flavour.ONNX)
    os.kill(zygote.pid, signal.SIGKILL)
    zygote.close()
    with pytest.raises(ZygoteGone):
        zygote.channel()


def test_a_zygote_that_imports_ends_when_its_server_is_killed(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)\n")  # imports for longer than the test waits
    code = (
        "import os\n"
        "from relaxc.service.process.pool import Pool\n"
        "from relaxc.service.process.task import Flavour\n"
        "pool = Pool()\n"
        "pool.warm(Flavour.PT2)\n"
        "print(pool.pids()[Flavour.PT2], flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert all_gone([int(done.stdout)])


def test_a_killed_server_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "from relaxc.service.process.pool import Pool\n"
        "from relaxc.service.process.task import Flavour\n"
        "pool = Pool()\n"
        "pool.warm(Flavour.ONNX)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=False)
    assert list(tmp_path.iterdir()) == []


def test_a_daemon_does_not_outlive_its_task(pool: Pool, task: Callable[..., Task], tmp_path: Path) -> None:
    pids: list[int] = []

    def listen(event: dict[str, Any]) -> None:
        pids.extend(outside(event["pids"]))
        (tmp_path / "seen").touch()

    pool.run(task("leaves_children"), listen)
    assert len(pids) == 2
    assert all_gone(pids)


def test_nonsense_on_the_channel_is_skipped_and_the_death_is_told(pool: Pool, task: Callable[..., Task]) -> None:
    events: list[dict[str, Any]] = []
    with pytest.raises(CompilerCrashed, match="SIGKILL"):
        pool.run(task("garble"), events.append)
    assert [event["event"] for event in events] == ["log"]


def test_an_endless_line_ends_the_task(pool: Pool, task: Callable[..., Task]) -> None:
    with pytest.raises(CompilerCrashed, match="a line of over"):
        pool.run(task("endless_line"), ignore)


def test_an_error_of_the_model_comes_as_it_was_raised(pool: Pool, task: Callable[..., Task]) -> None:
    with pytest.raises(UnsupportedModel, match="Frob") as caught:
        pool.run(task("refuse"), ignore)
    assert caught.value.fields == {"nodes": ["a", "b"]}


def test_a_bug_is_a_failed_compile_with_the_trace_in_its_log(pool: Pool, task: Callable[..., Task]) -> None:
    with pytest.raises(CompileFailed, match="KeyError: 'missing'") as caught:
        pool.run(task("bug"), ignore)
    assert caught.value.fields["stage"] == "optimize"
    assert "KeyError: 'missing'" in caught.value.fields["log_tail"]


def test_a_listener_that_raises_ends_the_task(pool: Pool, task: Callable[..., Task]) -> None:
    pids: list[int] = []

    def listen(event: dict[str, Any]) -> None:
        if "pids" in event:
            pids.extend(outside(event["pids"]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.run(task("sleep"), listen)
    assert all_gone(pids)


def test_tasks_run_beside_each_other(pool: Pool, task: Callable[..., Task]) -> None:
    runs = [Watched(pool, task("sleep")) for _ in range(3)]
    known = {tuple(run.own_pids()) for run in runs}  # in namespaces of their own all know themselves by the same
    pids = [pid for each in known for family in families(each) for pid in family]
    assert len(set(pids)) == 9
    for run in runs:
        run.cancellation.cancel()
    assert all(isinstance(run.ended(), Cancelled) for run in runs)
    assert all_gone(pids)


def test_closing_the_pool_ends_everything(task: Callable[..., Task]) -> None:
    with Pool() as pool:
        run = Watched(pool, task("sleep"))
        pids = [*run.pids(), *pool.pids().values()]
    assert isinstance(run.ended(), Cancelled)
    assert all_gone(pids)
    with pytest.raises(ServiceError, match="shutting down"):
        pool.run(task("echo"), ignore)


@pytest.mark.slow
def test_a_ready_worker_says_what_its_jobs_are_behind() -> None:
    with Pool() as pool:
        assert pool.ready() == {}
        pool.warm(Flavour.ONNX)
        until(pool.ready)
        sandbox = pool.ready()[Flavour.ONNX]
        assert set(sandbox) == {"network", "files", "calls", "modes", "user", "processes", "missing", "gaps"}
