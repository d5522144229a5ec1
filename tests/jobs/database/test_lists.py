"""A list of jobs reads what it shows: results, and what an error says in its fields, have up to a mebibyte each."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database import jobs, transitions
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from tests.jobs.rows import claim, put

LONG = "x" * 100_000


def test_a_list_reads_no_result_and_no_fields_of_an_error(database: Database) -> None:
    for outcome in (Outcome(result={"long": LONG}), Outcome(error=ServiceError("short", long=LONG))):
        put(database)
        job = claim(database)
        assert job is not None
        with database.begin() as connection:
            assert transitions.end(connection, job, outcome)
    read: list[int] = []

    def measured(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        rows = cursor.connection.cursor().execute(statement, parameters).fetchall()
        read.append(sum(len(str(value)) for row in rows for value in row))

    with database.read() as connection:
        sa.event.listen(database.engine, "after_cursor_execute", measured)
        page = jobs.page(connection, None, state=None, kind=None, model=None, limit=10, cursor=None)
        sa.event.remove(database.engine, "after_cursor_execute", measured)
    assert sum(read) < 5000
    failed, succeeded = page.jobs
    assert (succeeded.result, (failed.error or {})["message"], (failed.error or {})["fields"]) == (None, "short", {})
    with database.read() as connection:
        assert (jobs.get(connection, succeeded.id).result or {})["long"] == LONG
