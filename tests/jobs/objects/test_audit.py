"""The audit log read: chosen by time, owner, key and action, page by page, and all of it in order."""

from __future__ import annotations

import random

import pytest

from relaxc.service.errors import InvalidOption
from relaxc.service.jobs.database import audit
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import AuditFilter, AuditRow
from relaxc.service.jobs.objects.audit import Audit

NUMBER = 1234
ACTIONS = ("POST /v1/jobs", "DELETE /v1/models/{digest}")


@pytest.fixture
def log(database: Database) -> Audit:
    """Rows of three keys of two owners, some at the same time, and not in the order of their times."""
    draw = random.Random(1)
    with database.begin() as connection:
        for number in range(NUMBER):
            key = draw.randrange(3)
            moment = 1000.0 + number // 3 + draw.choice((-5, 0, 0.25))
            row = AuditRow(moment, f"k_{key}", draw.choice(ACTIONS), str(number), "202", "::1", {}, f"o_{key // 2}")
            audit.append(connection, [row])
    return Audit(database)


def paged(log: Audit, wanted: AuditFilter, limit: int) -> list[AuditRow]:
    found: list[AuditRow] = []
    cursor = None
    while True:
        page = log.page(wanted, limit=limit, cursor=cursor)
        assert len(page.rows) <= limit
        found += page.rows
        cursor = page.next
        if cursor is None:
            return found


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize(
    "wanted",
    [
        AuditFilter(),
        AuditFilter(key="k_1"),
        AuditFilter(owner="o_0", action=ACTIONS[1]),
        AuditFilter(since=1100.25, until=1200.0),
        AuditFilter(since=1100.25, key="k_2", action=ACTIONS[0]),
        AuditFilter(key="k_9"),
    ],
)
def test_pages_and_export_have_the_same_rows_in_opposite_order(log: Audit, wanted: AuditFilter) -> None:
    every = [row for rows in log.export(AuditFilter()) for row in rows]
    assert len(every) == NUMBER
    assert [row.time for row in every] == sorted(row.time for row in every)
    right = [
        row
        for row in every
        if wanted.key in (None, row.key)
        and wanted.owner in (None, row.owner)
        and wanted.action in (None, row.action)
        and (wanted.since is None or row.time >= wanted.since)
        and (wanted.until is None or row.time < wanted.until)
    ]
    assert [row for rows in log.export(wanted) for row in rows] == right
    assert paged(log, wanted, 97) == right[::-1]


def test_foreign_cursors_and_limits_are_refused(log: Audit) -> None:
    for cursor in ("x", "WzFd", "W251bGwsMV0", "\ud800"):
        with pytest.raises(InvalidOption):
            log.page(AuditFilter(), cursor=cursor)
    for limit in (0, 1001):
        with pytest.raises(InvalidOption):
            log.page(AuditFilter(), limit=limit)
