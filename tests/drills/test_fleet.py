"""The fleet drill: a few rounds, and all of them where slow tests run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.drills.world import ROOT

_MISSING = 2


def drill(folder: Path, *, rounds: int, seed: int) -> dict[str, Any]:
    """The summary of a drill in a process of its own, which becomes the parent of all that the service leaves."""
    command = [
        sys.executable,
        "-m",
        "tests.drills.fleet",
        "--folder",
        folder,
        "--rounds",
        str(rounds),
        "--seed",
        str(seed),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == _MISSING:
        pytest.skip(done.stderr.strip())
    assert done.returncode in (0, 1), done.stderr
    rounds_told, _, summary = done.stdout.partition("\n{\n")
    found: dict[str, Any] = json.loads("{" + summary)
    assert not found["wrong"], rounds_told
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_jobs_land_where_they_belong_through_twenty_deaths(tmp_path: Path) -> None:
    pytest.importorskip("moto")
    found = drill(tmp_path / "drill", rounds=20, seed=7)
    assert found["jobs"] >= 200
    assert found["killed"]["worker"] >= 3
    assert all(sum(claims.values()) > 0 for claims in found["claims"].values())
