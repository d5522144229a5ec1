"""The crash drill: a few rounds each time, fifty on each database where slow tests run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.drills.world import ROOT

_MISSING = 2


def drill(folder: Path, *, rounds: int, database: str, seed: int) -> dict[str, Any]:
    """The summary of a drill in a process of its own, which becomes the parent of all that the service leaves."""
    command = [sys.executable, "-m", "tests.drills.crash", "--folder", folder]
    command += ["--rounds", str(rounds), "--database", database, "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == _MISSING:
        pytest.skip(done.stderr.strip())
    assert done.returncode in (0, 1), done.stderr
    rounds_told, _, summary = done.stdout.partition("\n{\n")
    found: dict[str, Any] = json.loads("{" + summary)
    assert not found["wrong"], rounds_told
    return found


@pytest.mark.slow
def test_two_rounds(tmp_path: Path) -> None:
    found = drill(tmp_path / "drill", rounds=2, database="sqlite", seed=1)
    assert sum(found["killed"].values()) >= 2
    assert found["jobs succeeded"] >= 2
    assert found["downloads"] >= 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_fifty_rounds(tmp_path: Path, database: str) -> None:
    found = drill(tmp_path / "drill", rounds=50, database=database, seed=7)
    assert min(found["killed"].get(kind, 0) for kind in ("server", "relaxc-zygote", "relaxc-guard", "relaxc-job")) > 0
    assert {"upload", "wait", "download"} <= set(found["while clients were at"])
