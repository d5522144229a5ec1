"""The benchmark of the database in small: it fills, asks, empties, and tells."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.database import __main__ as program
from benchmarks.database.calls import CALLS, Case
from benchmarks.database.fill import Size, fill
from benchmarks.database.work import grown, work
from tests.postgres import PostgresMissing


def test_a_small_database_is_filled_asked_and_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "_SMALL", Size(20, 60, 10))
    words = ["--jobs", "40", "--events", "400", "--audit", "50", "--rounds", "2", "--retention", "--json"]
    monkeypatch.setattr(sys, "argv", ["database", "--work", str(tmp_path / "work"), *words])
    assert program.main() in (0, 1)  # times decide no test
    told = json.loads(capsys.readouterr().out)
    assert [row["call"] for row in told["calls"]] == list(CALLS)
    assert all(row["full_p99_s"] > 0 for row in told["calls"])
    emptied = told["retention"]
    assert emptied["removed"]["table/jobs"] == 40
    assert emptied["removed"]["table/job_events"] == 400
    assert emptied["writes"]["count"] > 0


@pytest.mark.parametrize("postgres", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sqlite", "postgres"])
def test_no_call_has_more_work_in_a_fuller_database(tmp_path: Path, postgres: bool) -> None:
    """Lists, claims and events find their rows by indexes, and a running job's row is updated where it is."""
    with ExitStack() as opened:
        try:
            databases = opened.enter_context(program._databases(tmp_path / "work", postgres=postgres))
        except PostgresMissing as error:
            pytest.skip(str(error))
        for database, size in zip(databases, (Size(700, 1400, 3000), Size(7000, 14_000, 30_000)), strict=True):
            fill(database, size)
        counted = []
        for database in databases:
            case = Case(database)
            case.prepare()
            work(case, 3)
            counted.append(work(case, 9))
    assert grown(*counted) == []
