"""A drill in a process of its own, which becomes the parent of all that the service leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.drills.world import ROOT

__all__ = ["drilled"]

_MISSING = 2


def drilled(module: str, folder: Path, **options: object) -> dict[str, Any]:
    """The summary of a drill in which nothing was wrong; skips where it says that something is missing."""
    command = [sys.executable, "-m", f"tests.drills.{module}", "--folder", str(folder)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == _MISSING:
        pytest.skip(done.stderr.strip())
    assert done.returncode in (0, 1), done.stderr
    rounds_told, _, summary = done.stdout.partition("\n{\n")
    found: dict[str, Any] = json.loads("{" + summary)
    assert not found["wrong"], rounds_told
    return found
