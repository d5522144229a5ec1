"""What `make test` takes of a product of parameters, and how a sample of the slow tests ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent

_PRODUCT = """
import pytest

@pytest.mark.sampled
@pytest.mark.parametrize(("m", "n"), [(1, 2), (2, 1), (1, 1)])
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_one(m, n, name):
    pass

@pytest.mark.sampled("b", "d")
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_named(name):
    pass

@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_most(name):
    pass
"""

_SLOW = """
import time
import pytest

pytestmark = pytest.mark.slow

@pytest.mark.parametrize("number", range(5))
def test_one(number):
    pass

def test_hangs():
    try:
        time.sleep({sleep_s})
    except KeyboardInterrupt:
        if {patient}:
            time.sleep({sleep_s})
        raise

def test_fails():
    assert {holds}

@pytest.mark.timeout(3600)
def test_takes_an_hour():
    raise AssertionError
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for tests, with our options and hooks."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: x\n    sampled: x\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    return tmp_path


def python(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, *map(str, arguments), folder],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _cases(folder: Path, which: str) -> dict[str, set[str]]:
    said = python(folder, "-m", "pytest", "--collect-only", "-q", "-m", which).stdout
    found: dict[str, set[str]] = defaultdict(set)
    for line in said.splitlines():
        if "[" in line:
            test, _, case = line.rpartition("::")[2].partition("[")
            found[test].add(case.removesuffix("]"))
    return found


def test_every_value_is_in_make_test_and_every_case_in_one_of_both(folder: Path) -> None:
    (folder / "test_product.py").write_text(_PRODUCT)
    taken, left = (_cases(folder, which) for which in ("not slow", "slow"))
    kept, rest = taken["test_one"], left["test_one"]
    assert len(kept) + len(rest) == 12
    assert not kept & rest
    assert 4 <= len(kept) <= 6
    for part in ("a-", "b-", "c-", "d-", "-1-2", "-2-1", "-1-1"):
        assert any(part in case for case in kept), part
    assert (taken["test_named"], left["test_named"]) == ({"b", "d"}, {"a", "c"})
    assert (len(taken["test_most"]), len(left["test_most"])) == (3, 1)


@pytest.mark.parametrize(
    ("sleep_s", "patient", "holds", "status", "says"),
    [
        (0, False, True, 0, "7 of 7 slow tests, 0 failed; to the end"),
        (0, False, False, 1, "1 failed"),
        (600, False, True, 0, "cut at its limit"),
        (600, True, True, 0, "cut at its limit"),
    ],
)
def test_a_sample_fails_when_a_test_does_and_never_for_want_of_time(
    folder: Path, sleep_s: int, patient: bool, holds: bool, status: int, says: str
) -> None:
    (folder / "test_slow.py").write_text(_SLOW.format(sleep_s=sleep_s, patient=patient, holds=holds))
    times = ("--limit-s", 5, "--grace-s", 2 if patient else PATIENCE_S) if sleep_s else ("--limit-s", PATIENCE_S)
    done = python(folder, "-m", "tests.sample", "--seed", "x", *times)
    assert (done.returncode, says in done.stdout) == (status, True), done.stdout + done.stderr
    assert "make sample SEED=x" in done.stdout


def test_a_sample_is_cut_where_interrupts_are_ignored(folder: Path) -> None:
    (folder / "test_slow.py").write_text(_SLOW.format(sleep_s=600, patient=False, holds=True))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = python(folder, "-m", "tests.sample", "--seed", "x", "--limit-s", 5, "--grace-s", PATIENCE_S)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.returncode, "cut at its limit" in done.stdout) == (0, True), done.stdout + done.stderr


_LEAVES = """
import time
import warnings
import pytest

pytestmark = pytest.mark.slow

class Unclosed:
    def __init__(self):
        self.itself = self

    def __del__(self):
        warnings.warn("unclosed", ResourceWarning)

@pytest.fixture
def leaves():
    yield
    Unclosed()

def test_is_cut(leaves):
    time.sleep(600)
"""


def test_what_a_cut_test_leaves_open_is_no_failure(folder: Path) -> None:
    """Where warnings are errors, pytest raises those of the end out of its `main`."""
    with (folder / "pytest.ini").open("a") as file:
        file.write("filterwarnings =\n    error\n")
    (folder / "test_slow.py").write_text(_LEAVES)
    done = python(folder, "-m", "tests.sample", "--seed", "x", "--limit-s", 5, "--grace-s", PATIENCE_S)
    assert (done.returncode, "cut at its limit" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(("sleep_s", "holds", "status"), [(0, False, 1), (600, True, 0)])
def test_a_limited_run_takes_all_in_order_and_a_cut_is_no_failure(
    folder: Path, sleep_s: int, holds: bool, status: int
) -> None:
    """What has a time limit of its own too, which a sample leaves out: that one fails, behind what hangs."""
    (folder / "test_slow.py").write_text(_SLOW.format(sleep_s=sleep_s, patient=False, holds=holds))
    done = python(folder, "-m", "tests.limited", "--limit-s", 5 if sleep_s else PATIENCE_S)
    ran = [line.partition(" ")[0].rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert ran[:6] == [*(f"test_one[{number}]" for number in range(5)), "test_hangs"]
    end = "cut at its limit of 5 s, which is no failure" if sleep_s else "2 failed; to the end"
    assert (done.returncode, end in done.stdout) == (status, True), done.stdout + done.stderr
    assert "of 8 slow tests" in done.stdout


def test_a_seed_decides_the_order(folder: Path) -> None:
    (folder / "test_slow.py").write_text(_SLOW.format(sleep_s=0, patient=False, holds=True))
    orders = [
        [line for line in python(folder, "-m", "tests.sample", "--seed", seed).stdout.splitlines() if "::" in line]
        for seed in ("x", "x", "y")
    ]
    assert [line.partition(" ")[0] for line in orders[0]] == [line.partition(" ")[0] for line in orders[1]]
    assert orders[0] != orders[2]
