"""A PostgreSQL of the test session's own, as Debian installs it: `pytest_plugins = ("tests.postgres",)` or an import.

`postgres` is the URL of a fresh, empty database of that server for each test that asks for it; `running_postgres` is a
server for what is no test.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["PostgresMissing", "postgres", "postgres_server", "running_postgres"]


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
    programs = _programs()
    if programs is None:
        raise PostgresMissing("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    root = Path(tempfile.mkdtemp(prefix="pg-"))  # short: a socket's path has at most 107 characters
    as_user = _as_other_user(root)
    if as_user is None:
        shutil.rmtree(root)
        raise PostgresMissing("PostgreSQL does not run as root, and there is no user postgres")
    data = root / "data"
    options = f"-k {root} -c listen_addresses='' -c fsync=off -c max_connections=200"
    try:
        _run(*as_user, programs / "initdb", "-D", data, "-U", "relaxc", "-A", "trust", "-E", "UTF8", "--no-sync")
        _run(*as_user, programs / "pg_ctl", "-D", data, "-w", "-t", "120", "-l", root / "log", "-o", options, "start")
        try:
            yield f"postgresql://relaxc@/postgres?host={root}"
        finally:
            _run(*as_user, programs / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(root, ignore_errors=True)


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
