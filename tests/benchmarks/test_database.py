"""The benchmark of the database in small: it fills, asks, empties, and tells."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.database import __main__ as program
from benchmarks.database.calls import CALLS
from benchmarks.database.fill import Size


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
