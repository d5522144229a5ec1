"""`/healthz` while the database does not answer."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing

from relaxc.service.api.counting import Counting
from relaxc.service.errors import ServiceError
from relaxc.service.jobs.backend import Counts
from tests.api.conftest import RunningServer


def test_healthz_answers_without_its_database(start: Callable[..., RunningServer]) -> None:
    server = start()
    health = server.client.get("/healthz").json()
    assert (health["running"], health["waiting"]) == (0, 0)
    with closing(sqlite3.connect(server.cache / "service.sqlite3", timeout=30)) as connection:
        connection.execute("ALTER TABLE jobs RENAME TO hidden")
        answer = server.client.get("/healthz")
        ready = server.client.get("/readyz")
        connection.execute("ALTER TABLE hidden RENAME TO jobs")
    assert answer.status_code == 200, answer.text
    health = answer.json()
    assert (health["status"], health["running"], health["waiting"]) == ("ok", None, None)
    assert ready.status_code in (200, 503)
    assert server.client.get("/healthz").json()["running"] == 0


def test_a_count_that_hangs_is_waited_for_once_and_by_one_thread() -> None:
    released, asked = threading.Event(), []

    def hangs() -> Counts:
        asked.append(time.monotonic())
        released.wait(60)
        return Counts(1, 2)

    async def ask() -> None:
        counting = Counting()
        assert await asyncio.gather(*(counting.now(hangs) for _ in range(50))) == [None] * 50
        assert await counting.now(hangs) is None
        assert len(asked) == 1
        released.set()
        assert await counting.now(hangs) == Counts(1, 2)

    asyncio.run(ask())


def test_a_count_that_fails_is_none() -> None:
    def fails() -> Counts:
        raise ServiceError("the database does not answer")

    assert asyncio.run(Counting().now(fails)) is None
