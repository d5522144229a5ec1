"""The hostile drill: some seconds each time, minutes where slow tests run; as who runs the tests, and as a user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.process.sandbox import landlock
from tests.drills.hostile import run
from tests.users import open_folder

__all__ = ["open_folder"]

pytestmark = pytest.mark.skipif(landlock.version() < 1, reason="this kernel has no Landlock")


def check(summary: dict[str, Any]) -> None:
    """All held, and there was something to hold."""
    assert summary["wrong"] == []
    assert len(summary["attacks"]) >= 25
    assert summary["attacks of jobs"] >= 100
    assert summary["good jobs"] >= 3


@pytest.mark.slow
def test_some_seconds_of_every_kind_of_attack(tmp_path: Path) -> None:
    check(run(seconds=6, connections=4, seed=3, folder=tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.geteuid() != 0, reason="starts a server of another user")
def test_a_server_of_a_user_whose_jobs_are_the_same_user(open_folder: Path) -> None:
    """There is no id that only the job has: what holds it are namespaces, Landlock and seccomp."""
    found = run(seconds=6, connections=2, seed=5, folder=open_folder / "drill", user=12345)
    check(found)
    assert found["sandbox"]["user"] == "same"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_attack_from_sixteen_connections(tmp_path: Path) -> None:
    found = run(seconds=600, connections=16, seed=4, folder=tmp_path)
    check(found)
    assert found["cases tried"] == found["cases"]
