"""The clock of rows: the database's, whatever this host believes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.engine import Database


@pytest.fixture(autouse=True)
def unasked() -> Iterator[None]:
    """No time was asked for; as it was, afterwards."""
    before, clock._ahead_s = clock._ahead_s, None
    yield
    clock._ahead_s = before


@pytest.mark.parametrize("days", [-500, 500])
def test_a_wrong_clock_of_a_host_moves_no_row_and_makes_no_file_old(
    database: Database, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    right = time.time
    with database.begin() as connection:
        clock.sync(connection)
    monkeypatch.setattr(time, "time", lambda: right() + days * 86400)
    assert abs(clock.now() - right()) < 60
    assert clock.file_time() <= right() + 60


def test_a_host_alone_has_its_own_time() -> None:
    assert abs(clock.now() - time.time()) < 60
