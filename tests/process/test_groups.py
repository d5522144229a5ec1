"""Control groups of jobs: real ones where this machine lets root make them, trees as test data for the others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.cgroups import Place, unified
from relaxc.service.config import Settings
from relaxc.service.errors import CompilerOutOfMemory, ServiceError
from relaxc.service.process import groups as groups_module
from relaxc.service.process.group import JOB, JobGroup
from relaxc.service.process.groups import Groups, bound_of_settings, claim_groups, why_no_groups
from relaxc.service.process.limits import Limits
from relaxc.service.process.pool import Pool
from relaxc.service.process.task import Flavour, Task
from tests.waiting import PATIENCE_S, until

LIMITS = Limits(timeout_s=PATIENCE_S, memory_bytes=1 << 30, file_bytes=64 << 20)


@pytest.fixture
def base() -> Iterator[Path]:
    """A group of our own in the hierarchy of this machine, whatever its controllers."""
    place = unified()
    if place is None or os.geteuid() != 0:
        pytest.skip("needs control groups of version 2, and root")
    folder = place.top / f"relaxc-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"makes a control group: {error}")
    try:
        yield folder
    finally:
        for path in (*folder.iterdir(), folder):
            if path.is_dir():
                until(lambda path=path: _removed(path))


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except OSError:
        return not path.exists()
    return True


@pytest.fixture
def bounded(base: Path) -> Path:
    """One whose groups bound memory and processes."""
    place = unified()
    assert place is not None
    for folder in (place.top, base):
        for name in ("memory", "pids", "cpu"):
            try:
                (folder / "cgroup.subtree_control").write_text(f"+{name}")
            except OSError as error:
                pytest.skip(f"needs the controller {name} in version 2: {error}")
    return base


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        yield pool


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., Task]:
    def make(entry: str, *, limits: Limits = LIMITS, **payload: Any) -> Task:
        return Task(f"tests.jobs.entries:{entry}", payload, tmp_path, Flavour.ONNX, limits)

    return make


def ignore(event: dict[str, Any]) -> None:
    """For tests that look at the end only."""


def test_a_group_ends_all_that_is_in_it(base: Path) -> None:
    with ExitStack() as stack:
        group = JobGroup(base, memory_bytes=1 << 30, processes=64)
        processes = [stack.enter_context(subprocess.Popen(["sleep", "600"])) for _ in range(3)]
        stack.callback(lambda: [process.kill() for process in processes])
        group.take(*(process.pid for process in processes))
        assert len((group.folder / "cgroup.procs").read_text().split()) == 3
        group.kill()
        assert [process.wait(PATIENCE_S) for process in processes] == [-9] * 3
        group.close()
    assert not group.folder.exists()


def test_what_a_killed_server_left_is_swept_and_what_is_held_is_not(base: Path) -> None:
    held = JobGroup(base, memory_bytes=1 << 30, processes=64)
    left = base / f"{JOB}left"
    left.mkdir()
    with subprocess.Popen(["sleep", "600"]) as process:
        (left / "cgroup.procs").write_text(str(process.pid))
        Groups(base, ()).sweep()
        assert process.wait(PATIENCE_S) == -9
    assert not left.exists()
    assert held.folder.exists()
    held.close()


def test_a_task_runs_in_a_group_that_is_gone_with_it(
    pool: Pool, base: Path, task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "groups", base)
    told = pool.run(task("groups"), lambda event: None)
    assert f"/{base.name}/{JOB}" in told["groups"]
    assert not list(base.glob(f"{JOB}*"))


def test_a_task_that_cannot_have_its_group_does_not_run(
    pool: Pool, tmp_path: Path, task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "groups", tmp_path / "nothing")
    with pytest.raises(ServiceError, match="control group"):
        pool.run(task("echo"), ignore)


def test_memory_is_bounded_for_all_processes_together(
    pool: Pool, bounded: Path, task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has half of the limit, which RLIMIT_DATA alone lets it."""
    monkeypatch.setattr(pool, "groups", bounded)
    limits = Limits(timeout_s=PATIENCE_S, memory_bytes=1 << 30, file_bytes=64 << 20)
    with pytest.raises(CompilerOutOfMemory) as caught:
        pool.run(task("hog_in_children", limits=limits, count=4, each_bytes=512 << 20), ignore)
    assert caught.value.fields["signal"] == "SIGKILL"
    assert not list(bounded.glob(f"{JOB}*"))
    assert pool.run(task("echo"), ignore) == {"payload": {}}


def test_shared_memory_counts(
    pool: Pool, bounded: Path, task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "groups", bounded)
    limits = Limits(timeout_s=PATIENCE_S, memory_bytes=512 << 20, file_bytes=2 << 30)
    with pytest.raises(CompilerOutOfMemory):
        pool.run(task("hog_shared", limits=limits, bytes=1 << 30), ignore)


def test_processes_are_bounded_together(bounded: Path) -> None:
    group = JobGroup(bounded, memory_bytes=1 << 30, processes=5)
    code = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(600)\n"
    with subprocess.Popen(
        ["sh", "-c", f'read go; exec {sys.executable} -c "$0"', code], stdin=subprocess.PIPE
    ) as process:
        group.take(process.pid)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 1  # BlockingIOError
        assert len((group.folder / "cgroup.procs").read_text().split()) <= 5
        group.close()


_CLAIMS = """
import os, subprocess, sys
from pathlib import Path
from relaxc.service.process.groups import claim_groups
base = Path(sys.argv[1])
(base / "cgroup.procs").write_text(str(os.getpid()))
child = subprocess.Popen(["sleep", "600"])
try:
    groups = claim_groups()
    assert groups.base == base, groups
    assert sorted(groups.controllers) == ["cpu", "memory", "pids"]
    moved = sorted((base / "relaxc-server/cgroup.procs").read_text().split())
    assert moved == sorted([str(os.getpid()), str(child.pid)])
    assert claim_groups() == groups  # as the next server finds it
    print("claimed", flush=True)
finally:
    child.kill()
"""


def test_a_server_makes_room_for_groups_in_the_one_that_it_was_given(bounded: Path) -> None:
    """As systemd gives one with Delegate=yes: the server is in it, and has to move for its jobs."""
    (bounded / "cgroup.subtree_control").write_text("-memory -pids -cpu")
    done = subprocess.run(
        [sys.executable, "-c", _CLAIMS, bounded], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.stdout == "claimed\n", done.stderr


def test_a_group_with_processes_of_others_is_not_taken(bounded: Path) -> None:
    (bounded / "cgroup.subtree_control").write_text("-memory -pids -cpu")
    with subprocess.Popen(["sleep", "600"]) as other:
        (bounded / "cgroup.procs").write_text(str(other.pid))
        done = subprocess.run([sys.executable, "-c", _CLAIMS, bounded], capture_output=True, text=True, check=False)
        other.kill()
    assert "has processes that are not the server's" in done.stderr


def tree(folder: Path, controllers: str = "cpu memory pids", enabled: str = "") -> Place:
    """What a group's files say, of one that is no kernel's."""
    folder.mkdir(parents=True)
    for name, text in {
        "cgroup.controllers": controllers,
        "cgroup.subtree_control": enabled,
        "cgroup.procs": "",
        "cgroup.type": "domain",
    }.items():
        (folder / name).write_text(text)
    return Place(folder, folder)


def test_what_refuses_groups_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "not mounted": None,
        "has no memory controller": tree(tmp_path / "a", controllers="hugetlb"),
        "processes that are not the server's": tree(tmp_path / "b"),
    }
    (tmp_path / "b" / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n")
    for what, place in places.items():
        monkeypatch.setattr(groups_module, "unified", lambda place=place: place)
        assert what in why_no_groups()
        with pytest.raises(OSError, match=what):
            claim_groups()
    monkeypatch.setattr(groups_module, "unified", lambda: tree(tmp_path / "c", enabled="memory pids"))
    assert why_no_groups() == ""


@pytest.mark.parametrize("wish", ["auto", "require", "off"])
def test_the_setting_decides_what_comes_of_a_refusal(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "unified", lambda: None)
    monkeypatch.setattr(groups_module, "settings", lambda: Settings(cgroups=wish))
    if wish == "require":
        with pytest.raises(ServiceError, match=r"RELAXC_CGROUPS=require.*not mounted"):
            bound_of_settings()
        return
    found = bound_of_settings().to_dict()
    assert (found["together"], found["cgroup"]) == ([], None)
    assert found["missing"]
