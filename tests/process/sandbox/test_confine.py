"""Hostile jobs in the sandbox: started by root and by a user, each attempt is refused; good jobs notice nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.config import settings
from service.errors import CompileError
from service.lowering.target import resolve
from service.process.limits import Limits
from service.process.pool import Pool
from service.process.sandbox import landlock
from service.process.sandbox.confine import FIRST_USER
from service.process.sandbox.confinement import Confinement
from service.process.task import Flavour, Task
from service.request import CompileOptions, CompileRequest, ModelFormat, ModelRef
from tests.api.conftest import make_onnx

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


def test_processes_of_others_are_out_of_reach(attempt: Attempt) -> None:
    got = attempt(kill=os.getpid(), attach=os.getpid(), namespace=None, read=f"/proc/{os.getpid()}/environ")
    assert refused(got), got


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
    task = Task("service.jobs.entries:compile_model", payload, workdir, limits=LIMITS, confinement=allowed)
    result = pool.run(task, lambda event: None)
    assert (workdir / result["files"][0]).stat().st_uid == os.geteuid()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest closes its own again whenever a session starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
def test_started_by_a_user_the_sandbox_is_the_same(sockets: dict[str, Any], open_folder: Path) -> None:
    secret = open_folder / "service.sqlite3"
    secret.write_text("keys")
    workdir = open_folder / "job"
    workdir.mkdir()
    for path in (workdir, secret):
        os.chown(path, 12345, 12345)
    payload = {
        **sockets,
        "read": str(secret),
        "list": str(open_folder),
        "attach": None,
        "kill": None,
        "namespace": None,
    }
    code = f"""
import json, os, sys
from pathlib import Path
from service.process.pool import Pool
from service.process.task import Task
payload = json.loads({json.dumps(payload)!r}) | {{"attach": os.getpid(), "kill": os.getpid()}}
with Pool() as pool:
    task = Task("tests.jobs.hostile:attempt", payload, Path({str(workdir)!r}))
    print(json.dumps(pool.run(task, lambda event: None)["got"]))
"""
    done = _as_user(12345, code, home=open_folder)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert refused(got), got


_BECOME = """
import os, sys
from pathlib import Path
from service.process.sandbox.namespaces import make_reachable
user, code = int(sys.argv[1]), sys.argv[2]
try:
    make_reachable([Path(name) for name in {*sys.path, sys.prefix, sys.base_prefix, os.getcwd()} if name])
except OSError as error:
    sys.exit(f"no mounts: {error}")
os.chdir(os.getcwd())
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
os.execv(sys.executable, [sys.executable, "-c", code])
"""
"""Runs code as a user from whom our files may be hidden, as a clone in the home of root is: the way there is opened."""


def _as_user(user: int, code: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(home)}
    command = [sys.executable, "-c", _BECOME, str(user), code]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.stderr.startswith("no mounts: "):
        pytest.skip("needs a home that others may pass, or the right to mount: " + done.stderr)
    return done


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
