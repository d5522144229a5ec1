"""Hostile jobs in the sandbox: started by root and by a user, each attempt is refused; good jobs notice nothing."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from relaxc.service.config import settings
from relaxc.service.errors import CompileError
from relaxc.service.lowering.target import resolve
from relaxc.service.process.limits import Limits
from relaxc.service.process.pool import Pool
from relaxc.service.process.sandbox import landlock
from relaxc.service.process.sandbox.confine import FIRST_USER
from relaxc.service.process.sandbox.confinement import Confinement
from relaxc.service.process.task import Flavour, Task
from relaxc.service.request import CompileOptions, CompileRequest, ModelFormat, ModelRef
from tests.api.conftest import make_onnx
from tests.users import as_user, open_folder
from tests.waiting import until

__all__ = ["open_folder"]

ROOT = Path(__file__).parents[3]
LIMITS = Limits(timeout_s=120.0, memory_bytes=4 << 30, file_bytes=1 << 30)

pytestmark = pytest.mark.skipif(landlock.version() < 1, reason="this kernel has no Landlock")

Attempt = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAXC_DATABASE_URL", "postgresql://relaxc:hunter2@db/relaxc")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        patch.setenv("ANY_OTHER_TOKEN", "hunter2")
        with Pool() as pool:
            pool.warm(Flavour.ONNX)
            yield pool
    settings.cache_clear()  # those of this environment may have been read first for these tests


@pytest.fixture(params=["own user", "root without rights"])
def attempt(request: pytest.FixtureRequest, pool: Pool, tmp_path: Path) -> Attempt:
    """Runs attempts in a job of its own folder, and gives what came of each."""
    if os.geteuid() != 0:
        pytest.skip("needs root, who can give a job a user of its own")
    workdir = tmp_path / "job"
    workdir.mkdir()
    confinement = Confinement(own_user=request.param == "own user")

    def run(**payload: Any) -> dict[str, str]:
        task = Task("tests.jobs.hostile:attempt", payload, workdir, limits=LIMITS, confinement=confinement)
        return pool.run(task, lambda event: None)["got"]

    return run


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A TCP port and two UNIX sockets that answer whoever reaches them."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "stream"))
        unix.listen()
        (tmp_path / "stream").chmod(0o777)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(str(tmp_path / "datagram"))
            (tmp_path / "datagram").chmod(0o777)
            names = {"unix": str(tmp_path / "stream"), "datagram": str(tmp_path / "datagram")}
            names |= {"raw": names["datagram"], "unconnected": names["unix"]}
            yield {"tcp": tcp.getsockname()[1], **names}


def on_process(pid: int) -> dict[str, int]:
    """What can be tried on a process."""
    return dict.fromkeys(("kill", "attach", "limit", "priority", "pin", "pidfd", "score", "command_line"), pid)


_BESIDE_SIGNALS = ("priority", "pin", "command_line")
"""What the same user may do to a process that shows, and that Landlock, which knows of signals, does not stop."""


def on_file(path: Path) -> dict[str, str]:
    """What can be tried on a file."""
    names = "chmod", "chmod_by_descriptor", "chown", "utime", "truncate", "open_and_truncate", "attribute"
    return dict.fromkeys((*names, "write", "rename", "unlink", "hard_link"), str(path))


def facts_of(path: Path) -> tuple[str, int, int, int, int]:
    """What of a file is nobody's to change but its owner's."""
    found = path.stat()
    return path.read_text(), found.st_mode, found.st_uid, found.st_mtime_ns, found.st_nlink


def refused(got: dict[str, str]) -> bool:
    """Whether nothing came of any attempt."""
    return all(text.startswith("refused: ") for text in got.values())


def test_no_socket_reaches_anybody(attempt: Attempt, sockets: dict[str, Any]) -> None:
    got = attempt(**sockets)
    assert refused(got), got


def test_the_cuda_driver_may_start(attempt: Attempt) -> None:
    got = attempt(start_as_cuda_does=None)
    assert got == {"start_as_cuda_does": "got 'started, the GPU asked for before: 1'"}
    assert refused(attempt(named_socket="here", write=f"/proc/{os.getppid()}/comm", read=f"/proc/{os.getppid()}/mem"))


@pytest.mark.parametrize(
    ("own_user", "gpu_in_children", "starts"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_the_cuda_driver_may_start_in_children_of_a_tuning(
    pool: Pool, tmp_path: Path, own_user: bool, gpu_in_children: bool, starts: bool
) -> None:
    """Of one that has a user of its own: root would be let at the kernel's settings with it."""
    if os.geteuid() != 0:
        pytest.skip("needs root, who can give a job a user of its own")
    confinement = Confinement(own_user=own_user, gpu_in_children=gpu_in_children)
    assert Confinement.from_dict(confinement.to_dict()) == confinement
    others = f"/proc/{os.getppid()}/comm"
    payload = {"start_cuda_in_a_child": None, "open_for_writing": "/proc/sys/kernel/hostname", "write": others}
    task = Task("tests.jobs.hostile:attempt", payload, tmp_path, limits=LIMITS, confinement=confinement)
    got = pool.run(task, lambda event: None)["got"]
    assert (got.pop("start_cuda_in_a_child") == "got 'started'") is starts
    assert refused(got), got


def test_files_of_others_are_neither_read_nor_listed_nor_written(attempt: Attempt, tmp_path: Path) -> None:
    secret = tmp_path / "service.sqlite3"
    secret.write_text("keys")
    secret.chmod(0o644)
    other = tmp_path / "job-2"
    other.mkdir(mode=0o777)
    got = attempt(read=str(secret), list=str(other), write=str(other / "x"), link_and_read=str(secret))
    assert refused(got), got
    assert refused(attempt(read="/etc/shadow", list="/root", write="/usr/x"))
    assert refused(attempt(list="/tmp", write="/tmp/relaxc-was-here"))


def test_processes_of_others_are_out_of_reach(attempt: Attempt, pool: Pool) -> None:
    attempts = on_process(os.getpid())
    until(pool.ready)
    if pool.ready()[Flavour.ONNX]["processes"] != "namespace":
        attempts = {name: pid for name, pid in attempts.items() if name not in _BESIDE_SIGNALS}
    got = attempt(namespace=None, read=f"/proc/{os.getpid()}/environ", **attempts)
    assert refused(got), got


def test_files_of_others_keep_their_bytes_modes_owners_times_and_names(attempt: Attempt, tmp_path: Path) -> None:
    secret = tmp_path / "service.sqlite3"
    secret.write_text("keys")
    before = facts_of(secret)
    got = attempt(**on_file(secret)) | attempt(**on_file(ROOT / "pyproject.toml"))
    assert refused(got), got
    assert facts_of(secret) == before


def test_the_environment_has_no_secrets(attempt: Attempt) -> None:
    zygotes = [process.pid for process in psutil.Process().children()]
    text = attempt(environments=[os.getpid(), *zygotes])["environments"]
    assert "PATH=" in text
    assert "RELAXC_CACHE_DIR=" in text
    assert "hunter2" not in text
    for name in ("DATABASE_URL", "AWS_", "TOKEN"):
        assert name not in text


def test_a_user_id_that_only_the_job_has(pool: Pool, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    payload = {"facts": None, "breed": 5000, "write": "left", "become_root": None}
    task = Task("tests.jobs.hostile:attempt", payload, tmp_path, limits=LIMITS)
    got = pool.run(task, lambda event: None)["got"]
    assert got["become_root"].startswith("refused")
    facts = eval(got["facts"].removeprefix("got "), {"__builtins__": {}})  # noqa: S307  # the repr of a dict of ours
    assert facts["uid"] > FIRST_USER
    assert (facts["gid"], facts["groups"]) == (FIRST_USER, [])
    assert Path(facts["home"]).is_relative_to(tmp_path)
    assert 0 < int(got["breed"].removeprefix("got ")) < 1000
    # What it left is ours again: the next job with that process id is somebody else.
    assert {path.stat().st_uid for path in (tmp_path, *tmp_path.rglob("*"))} == {0}


def _request(path: Path) -> CompileRequest:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(make_onnx(4))
    reference = ModelRef(ModelFormat.ONNX, "a" * 64, path.stat().st_size, path)
    return CompileRequest(reference, resolve("auto"), CompileOptions())


@pytest.mark.parametrize("own_user", [True, False])
@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_real_compile_notices_nothing(pool: Pool, tmp_path: Path, own_user: bool, mode: int) -> None:
    request = _request(tmp_path / "model.onnx")
    request.model.path.chmod(mode)
    workdir = tmp_path / "job"
    workdir.mkdir(mode=0o700)
    payload = {"request": request.to_dict(), "dump_dir": None}
    allowed = Confinement(reads=(request.model.path,), own_user=own_user)
    task = Task("relaxc.service.jobs.entries:compile_model", payload, workdir, limits=LIMITS, confinement=allowed)
    result = pool.run(task, lambda event: None)
    assert (workdir / result["files"][0]).stat().st_uid == os.geteuid()


_ATTACKED = """
import json, os, sys
from pathlib import Path
from relaxc.service.process.pool import Pool
from relaxc.service.process.sandbox.kernel import prctl
from relaxc.service.process.sandbox.seccomp import filter_calls
from relaxc.service.process.task import Flavour, Task
from relaxc.service.request import CompileRequest
attempts, on_process, compiled, folder, namespaces = json.loads(sys.stdin.read())
if not namespaces:
    prctl(38, 1)
    filter_calls(network=True, modes=True)
with Pool() as pool:
    pool.warm(Flavour.ONNX)
    payload = attempts | dict.fromkeys(on_process, os.getpid())
    got = pool.run(Task("tests.jobs.hostile:attempt", payload, Path(folder, "job")), lambda event: None)["got"]
    task = Task("relaxc.service.jobs.entries:compile_model", compiled, Path(folder, "compiled"))
    files = pool.run(task, lambda event: None)["files"]
    print(json.dumps([got, files, pool.ready()["onnx"]]))
"""
"""A job that attacks its server, and one that compiles, both of a user without rights; without `namespaces` the server
itself may have none, as in Docker's default profile."""


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
@pytest.mark.parametrize("namespaces", [True, False])
def test_started_by_a_user_the_sandbox_is_the_same(
    sockets: dict[str, Any], open_folder: Path, namespaces: bool
) -> None:
    secret = open_folder / "service.sqlite3"
    secret.write_text("keys")
    (open_folder / "job").mkdir()
    request = _request(open_folder / "compiled" / "model.onnx")
    for path in (open_folder, secret, open_folder / "job", *open_folder.rglob("*")):
        os.chown(path, 12345, 12345)
    before = facts_of(secret)
    attempts = {**sockets, **on_file(secret), "read": str(secret), "list": str(open_folder), "namespace": None}
    compiled = {"request": request.to_dict(), "dump_dir": None}
    said = [attempts, list(on_process(0)), compiled, str(open_folder), namespaces]
    done = as_user(12345, _ATTACKED, home=open_folder, said=json.dumps(said))
    assert done.returncode == 0, done.stderr
    got, files, sandbox = json.loads(done.stdout)
    if sandbox["gaps"]:
        pytest.skip(f"needs a kernel with Landlock 6, or namespaces: {sandbox}")
    if sandbox["processes"] == "signals":
        assert {got.pop(name) for name in _BESIDE_SIGNALS}
    assert refused(got), got
    assert facts_of(secret) == before
    assert files
    assert sandbox["modes"] == ("mounts" if namespaces and "modes" not in sandbox["missing"] else "filter")


@pytest.mark.parametrize("entry", ["segfault", "bug"])
def test_an_error_names_no_folder_of_the_server_but_to_who_runs_it(pool: Pool, tmp_path: Path, entry: str) -> None:
    for own_user in (True, False):
        workdir = tmp_path / f"job-{own_user}"
        workdir.mkdir()
        confinement = Confinement(reads=(tmp_path / "models",), own_user=own_user)
        task = Task(f"tests.jobs.entries:{entry}", {}, workdir, limits=LIMITS, confinement=confinement)
        with pytest.raises(CompileError) as caught:
            pool.run(task, lambda event: None)
        told = json.dumps(caught.value.to_dict())
        assert ("RELAXC/tests/jobs/entries.py" in told) is own_user
        assert (str(ROOT) in told) is not own_user
