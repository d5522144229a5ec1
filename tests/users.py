"""Processes of another user than root, who runs the tests."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["as_user", "command_of", "open_folder"]

ROOT = Path(__file__).parents[1]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest closes its own again whenever a session starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


_BECOME = """
import os, sys
from pathlib import Path
from relaxc.service.process.sandbox.namespaces import make_reachable
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


def command_of(user: int, code: str) -> list[str]:
    """The command that becomes this user and runs the code; PYTHONPATH has to have our root."""
    return [sys.executable, "-c", _BECOME, str(user), code]


def as_user(user: int, code: str, home: Path, said: str = "") -> subprocess.CompletedProcess[str]:
    """How a Python process of this user ended that ran the code. Skips the test where our files are hidden from it."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(home)}
    command = command_of(user, code)
    done = subprocess.run(command, env=environment, cwd=ROOT, input=said, capture_output=True, text=True, check=False)
    if done.stderr.startswith("no mounts: "):
        pytest.skip("needs a home that others may pass, or the right to mount: " + done.stderr)
    return done
