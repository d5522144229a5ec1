"""The hub outlives what befalls its database: an empty pool, a bug, a PostgreSQL that hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psutil
import psycopg
import pytest
import sqlalchemy as sa

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database import engine, events, transitions
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import EventRow
from relaxc.service.jobs.queue.hub import Hub, Subscription
from tests.jobs.rows import claim, put
from tests.waiting import PATIENCE_S


@pytest.fixture
def small(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database with two connections, for which a call waits 0.2 s."""
    monkeypatch.setattr(engine, "_POOL", 1)
    monkeypatch.setattr(engine, "_POOL_WAIT_S", 0.2)
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def hub(small: Database) -> Iterator[Hub]:
    opened = Hub(small)
    yield opened
    opened.close()


@contextmanager
def emptied(database: Database) -> Iterator[None]:
    """While the test has all connections of the pool."""
    with ExitStack() as held:
        for _ in range(2):
            while True:  # the hub has one now and then
                try:
                    held.enter_context(database.engine.connect())
                    break
                except sa.exc.TimeoutError:
                    continue
        yield


def started(database: Database) -> str:
    put(database)
    job = claim(database)
    assert job is not None
    return job.id


def first_of(subscription: Subscription) -> EventRow:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := subscription.take():
            return found[0]
        time.sleep(0.02)
    raise AssertionError("no event came")


def test_an_empty_pool_is_a_database_that_does_not_answer(small: Database) -> None:
    with emptied(small):
        for opened in (small.begin, small.read):
            with pytest.raises(ServiceError, match="in use"), opened():
                pass
        assert "in use" in str(small.ping())
    assert small.ping() is None


def test_it_goes_on_after_an_empty_pool(small: Database, hub: Hub) -> None:
    id = started(small)
    with emptied(small):
        subscription = hub.subscribe(id, 0, lambda: None)
        time.sleep(0.5)
        assert subscription.take() == ()
    assert first_of(subscription).data["state"] == "running"


def test_it_goes_on_after_a_bug(small: Database, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    id, read, bugs = started(small), events.read, iter([KeyError("a bug")])

    def fails_once(*given: object) -> tuple[EventRow, ...]:
        for bug in bugs:
            raise bug
        return read(*given)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(events, "read", fails_once)
    assert first_of(hub.subscribe(id, 0, lambda: None)).data["state"] == "running"


def test_it_keeps_what_came_after_the_first_listener(small: Database, hub: Hub) -> None:
    id = started(small)
    late = hub.subscribe(id, 1, lambda: None)
    early = hub.subscribe(id, 0, lambda: None)
    assert first_of(early).seq == 1
    ahead = hub.subscribe(id, 2, lambda: None)
    with small.begin() as connection:
        transitions.recover(connection, (id, 1))
    assert first_of(late).seq == first_of(early).seq == 2
    assert ahead.take() == ()
    for each in (early, late, ahead):
        each.close()
    assert hub._stories == {}


@pytest.fixture
def hang(postgres: str) -> Iterator[Callable[[bool], None]]:
    """Stops every process of the test's PostgreSQL, or lets them go on."""
    with psycopg.connect(postgres) as connection:
        server = psutil.Process(connection.info.backend_pid).parent()
        assert server is not None
    stopped: list[int] = []

    def send(stop: bool) -> None:
        if stop:
            stopped.extend(process.pid for process in (server, *server.children(recursive=True)))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT)
        if not stop:
            stopped.clear()

    yield send
    send(False)


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_postgresql_that_hangs_holds_up_nobody_for_ever(
    small: Database, hub: Hub, hang: Callable[[bool], None]
) -> None:
    id = started(small)
    subscription = hub.subscribe(id, 0, lambda: None)
    first_of(subscription)
    hang(True)
    waiting = [threading.Thread(target=small.ping, daemon=True) for _ in range(2)]  # they take the pool, and hang
    for thread in waiting:
        thread.start()
    time.sleep(0.5)
    with pytest.raises(ServiceError, match="in use"), small.read():
        pass
    time.sleep(1.0)
    hang(False)
    for thread in waiting:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    with small.begin() as connection:
        assert transitions.recover(connection, (id, 1))
    assert first_of(subscription).data["state"] == "queued"


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_statement_has_an_end_unless_it_may_take_time(database: Database) -> None:
    with database.begin() as connection:
        assert connection.scalar(sa.text("SHOW statement_timeout")) == "30s"
        assert connection.scalar(sa.text("SHOW lock_timeout")) == "20s"
        database.take_time(connection)
        assert connection.scalar(sa.text("SHOW statement_timeout")) == "0"
    with database.read() as connection:
        assert connection.scalar(sa.text("SHOW statement_timeout")) == "30s"


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_the_url_has_the_last_word_on_timeouts(database_url: str) -> None:
    database = Database(f"{database_url}&options=-c%20statement_timeout%3D5s&keepalives_idle=77")
    with database.read() as connection:
        assert connection.scalar(sa.text("SHOW statement_timeout")) == "5s"
        assert connection.scalar(sa.text("SHOW lock_timeout")) == "20s"
        driver = connection.connection.driver_connection
        assert driver is not None
        assert driver.info.get_parameters()["keepalives_idle"] == "77"
    database.close()
