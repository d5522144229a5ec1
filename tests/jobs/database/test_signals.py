"""What processes of one PostgreSQL tell one another."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
import sqlalchemy as sa

from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.signals import EVENTS, QUEUE, Signals
from tests.waiting import PATIENCE_S, until

Word = tuple[str, tuple[str, ...]]


class Process:
    """One process's end."""

    def __init__(self, url: str) -> None:
        self._database = Database(url, 2)
        self.words: queue.SimpleQueue[Word] = queue.SimpleQueue()
        self.signals = Signals(self._database, lambda topic, ids: self.words.put((topic, ids)))
        self.signals.start()

    def hear(self) -> Word:
        return self.words.get(timeout=PATIENCE_S)

    def start(self) -> None:
        """Hear that it hears."""
        assert self.hear() == (QUEUE, ())
        assert self.signals.is_heard

    def cut_off(self) -> None:
        """Ends its connections from the other side."""
        others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%'"
        )
        with self._database.engine.connect() as connection:
            connection.execute(sa.text(f"{others} AND datname = current_database()"))

    def close(self) -> None:
        self.signals.close()
        self._database.close()


@pytest.fixture
def process(postgres: str) -> Iterator[Callable[[], Process]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Process(postgres)))


def test_what_one_tells_all_others_hear(process: Callable[[], Process]) -> None:
    one, two, three = process(), process(), process()
    for each in (one, two, three):
        each.start()
    one.signals.tell(QUEUE)
    assert two.hear() == three.hear() == (QUEUE, ())
    one.signals.tell(EVENTS, "j_1")
    assert two.hear() == (EVENTS, ("j_1",))
    two.signals.tell(EVENTS, "j_2")
    assert one.hear() == (EVENTS, ("j_2",))  # and none of its own


def test_many_events_are_few_words(process: Callable[[], Process]) -> None:
    one, two = process(), process()
    one.start()
    two.start()
    ids = {f"j_{number:022}" for number in range(1000)}
    for id in ids:
        one.signals.tell(EVENTS, id)
    heard: set[str] = set()
    words = 0
    while heard != ids:
        topic, some = two.hear()
        assert topic == EVENTS
        heard.update(some)
        words += 1
    assert words < 100


def test_who_was_cut_off_looks_by_itself_and_hears_again(process: Callable[[], Process]) -> None:
    one, two = process(), process()
    one.start()
    two.start()
    two.cut_off()
    one.start()
    two.start()
    one.signals.tell(QUEUE)
    assert two.hear() == (QUEUE, ())


def test_sqlite_has_none(tmp_path: object) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/service.sqlite3")) as database:
        signals = Signals(database, lambda topic, ids: pytest.fail(topic))
        signals.start()
        signals.tell(QUEUE)
        assert not signals.is_heard
        signals.close()


@pytest.mark.slow
def test_fifty_processes_fit_into_two_hundred_connections(postgres: str) -> None:
    """docs/deploying.md has the sum: 2 servers of 16 and 1, 48 workers of 2 and 1; all in use at once."""
    with ExitStack() as stack:
        for connections in (*[16] * 2, *[2] * 48):
            database = stack.enter_context(closing(Database(postgres, connections)))
            signals = stack.enter_context(closing(Signals(database, lambda topic, ids: None)))
            signals.start()
            # One of the pool's connections tells whether anything is heard; there are none once all are taken.
            until(lambda signals=signals: signals.is_heard)  # type: ignore[misc]  # of this turn
            for _ in range(connections):
                stack.enter_context(database.engine.connect())
        database = Database(postgres, 1)
        stack.callback(database.close)
        with database.read() as connection:
            there = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relaxc'"
            assert connection.scalar(sa.text(there)) == 2 * 17 + 48 * 3 + 1
            assert int(connection.scalar(sa.text("SHOW max_connections")) or 0) == 200
