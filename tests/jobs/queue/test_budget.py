"""Memory that jobs and those who look at uploads share."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from relaxc.service.errors import Busy
from relaxc.service.jobs.queue.budget import Budget
from tests.waiting import PATIENCE_S, until

MIB = 1 << 20


def test_as_many_borrow_as_there_is_memory_for() -> None:
    budget = Budget(1000 * MIB)
    with ExitStack() as loans:
        for _ in range(10):
            loans.enter_context(budget.lend(100 * MIB, 0))
        assert budget.lent_bytes == 1000 * MIB
        with pytest.raises(Busy) as caught, budget.lend(1, 0):
            pass
        assert caught.value.fields["retry_after_s"] > 0
    assert budget.lent_bytes == 0


def test_one_may_always_borrow_and_who_waits_is_woken() -> None:
    budget, borrowed = Budget(100 * MIB), threading.Event()
    budget.take("a job", 100 * MIB)

    def borrow() -> None:
        with budget.lend(50 * MIB, PATIENCE_S):
            borrowed.set()

    with budget.lend(50 * MIB, 0):
        waiting = threading.Thread(target=borrow)
        waiting.start()
        assert not borrowed.wait(0.1)
    assert borrowed.wait(PATIENCE_S)
    waiting.join()


def test_a_job_waits_for_what_is_lent_and_is_not_starved_by_more_of_it() -> None:
    budget = Budget(100 * MIB)
    budget.take("a job", 10 * MIB)
    with budget.lend(40 * MIB, 0):
        assert not budget.fits(60 * MIB)
        with pytest.raises(Busy), budget.lend(1, 0):  # there would be memory, which the job waits for
            pass
    assert budget.fits(60 * MIB)
    with budget.lend(10 * MIB, 0), budget.lend(10 * MIB, 0):
        assert budget.lent_bytes == 20 * MIB


def test_a_job_over_the_limit_starts_alone_whatever_is_lent() -> None:
    budget = Budget(100 * MIB)
    with budget.lend(50 * MIB, 0):
        assert budget.fits(500 * MIB)


def test_a_job_that_ends_makes_room_for_borrowers() -> None:
    budget = Budget(100 * MIB)
    budget.take("a job", 90 * MIB)
    done: list[int] = []

    def borrow() -> None:
        with budget.lend(40 * MIB, PATIENCE_S):
            done.append(1)
            until(lambda: len(done) == 2)

    threads = [threading.Thread(target=borrow) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: len(done) == 1)
    budget.release("a job")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(done) == 2
