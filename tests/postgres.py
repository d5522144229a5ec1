"""A PostgreSQL of the test session's own, as Debian installs it: `pytest_plugins = ("tests.postgres",)` or an import.

`postgres` is the URL of a fresh, empty database of that server for each test that asks for it; `running_postgres` is a
server for what is no test, and `Postgres` one that can be killed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.waiting import gone

__all__ = ["Postgres", "PostgresMissing", "postgres", "postgres_server", "running_postgres"]


class PostgresMissing(Exception):
    """Why no server can be started here."""


def _programs() -> Path | None:
    """The folder of the newest installed server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A server on a Unix socket in a folder of its own, without durability; the URL of its first database."""
    try:
        with running_postgres() as url:
            yield url
    except PostgresMissing as error:
        pytest.skip(str(error))


@contextmanager
def running_postgres() -> Iterator[str]:
    """The same, while the block runs. Raises PostgresMissing."""
    server = Postgres()
    try:
        server.start()
        yield server.url
    finally:
        server.close()


class Postgres:
    """One server, not started yet, in a folder that `close` removes. Raises PostgresMissing."""

    def __init__(self) -> None:
        programs = _programs()
        if programs is None:
            raise PostgresMissing("PostgreSQL is not installed (Debian: apt-get install postgresql)")
        self._programs = programs
        self._root = Path(tempfile.mkdtemp(prefix="pg-"))  # short: a socket's path has at most 107 characters
        as_user = _as_other_user(self._root)
        if as_user is None:
            shutil.rmtree(self._root)
            raise PostgresMissing("PostgreSQL does not run as root, and there is no user postgres")
        self._as_user = as_user
        self.url = f"postgresql://relaxc@/postgres?host={self._root}"
        self._do("initdb", "-U", "relaxc", "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        """Return when it takes connections."""
        options = f"-k {self._root} -c listen_addresses='' -c fsync=off -c max_connections=200"
        self._do("pg_ctl", "-w", "-t", "120", "-l", self._root / "log", "-o", options, "start")

    def crash(self) -> None:
        """`kill -9` of the process whose end ends all of them; return when they are gone and it may start again."""
        first = int((self._root / "data/postmaster.pid").read_text().split()[0])
        ours = [psutil.Process(first), *psutil.Process(first).children()]
        os.kill(first, signal.SIGKILL)
        assert gone(ours)
        for process in ours:  # where this process is a subreaper; as zombies they would count as a server that runs
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, 0)

    def close(self) -> None:
        """End it, where it runs, and remove its folder."""
        if (self._root / "data/postmaster.pid").exists():
            self._do("pg_ctl", "-w", "-m", "immediate", "stop")
        shutil.rmtree(self._root, ignore_errors=True)

    def _do(self, program: str, *arguments: object) -> None:
        _run(*self._as_user, self._programs / program, "-D", self._root / "data", *arguments)


def _as_other_user(root: Path) -> list[str] | None:
    """How to run a program as a user that is not root, who gets `root`; None where there is none."""
    if os.geteuid() != 0:
        return []
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        return None
    os.chown(root, user.pw_uid, user.pw_gid)
    # Not runuser: it is in /usr/sbin, which a root shell that `su` made has not on its path.
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"]


def _run(*command: object) -> None:
    done = subprocess.run(
        [str(word) for word in command],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()


@pytest.fixture
def postgres(postgres_server: str) -> Iterator[str]:
    """The URL of an empty database; it is dropped afterwards, whoever is connected."""
    import psycopg

    name = f"t{uuid.uuid4().hex[:16]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres_server.replace("/postgres?", f"/{name}?")
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
