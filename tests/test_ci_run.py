"""`.ci/run` with stand-ins for `make` and `apt-get`: what it runs, what fails it, what it says where time is short."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FIRST = ["test", "build/aarch64"]
_MAKE = 'echo "$@" >>"$LOG"; [ "$1" != "$FAILS" ]'


def _run(folder: Path, *, fails: str = "", seconds: int = 0) -> tuple[int, str, list[str]]:
    """Its exit status, what it says, and the calls of `make`; `seconds` have gone by when it begins."""
    for name, text in (("make", _MAKE), ("apt-get", "exit 1")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    named = {"LOG": str(folder / "log"), "FAILS": fails, "SECONDS": str(seconds), "SEED": "x"}
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **named}
    done = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, (folder / "log").read_text().splitlines()


def test_it_tests_all_and_then_graphs_the_images_and_a_sample(tmp_path: Path) -> None:
    status, said, made = _run(tmp_path)
    assert (status, made) == (
        0,
        [
            *FIRST,
            "fuzz SEED=x FUZZ_LIMIT=300 FUZZ_FAILS=crash,hung",
            "docker-test DOCKER_LIMIT=1050",
            "sample SEED=x LIMIT=450",
        ],
    ), said


@pytest.mark.parametrize("fails", ["test", "fuzz", "docker-test", "sample"])
def test_what_fails_fails_it(tmp_path: Path, fails: str) -> None:
    assert _run(tmp_path, fails=fails)[0] != 0


def test_wheels_that_cannot_be_downloaded_fail_nothing(tmp_path: Path) -> None:
    assert _run(tmp_path, fails="build/aarch64")[0] == 0


def test_a_slow_machine_does_less_and_says_so(tmp_path: Path) -> None:
    status, said, made = _run(tmp_path, seconds=3100)
    assert (status, made[:2], len(made)) == (0, FIRST, 4)
    assert made[2].startswith("fuzz SEED=x FUZZ_LIMIT=") and made[3].startswith("sample SEED=x LIMIT=")
    assert "no time is left to build and test the images" in said
    status, said, made = _run(tmp_path, seconds=3300)
    assert (status, len(made)) == (0, 6)
    assert "no time is left for random graphs" in said
    assert "no time is left for a sample" in said
