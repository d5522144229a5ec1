"""When the machine counts as loud, and how long is waited for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relaxc.service.tuning.measure.listener import Listener
from relaxc.service.tuning.measure.messages import Heard


def listener(heard: list[Heard | None], pauses: list[float], wait_s: float = 1.0, **more: Any) -> Listener:
    """One that hears the list, and its last again and again."""

    def endless() -> Iterator[Heard | None]:
        yield from heard
        while True:
            yield heard[-1]

    said = endless()
    return Listener(lambda: next(said), wait_s, pauses.append, **more)


def test_a_quiet_machine_is_not_waited_for() -> None:
    pauses: list[float] = []
    made = listener([Heard(1.0, 0.01), Heard(1.1, 0.01)], pauses)
    assert not made.wait_until_quiet()
    assert not made.listen()
    assert abs(made.noise.drift - 0.1) < 1e-9
    assert not pauses


def test_spread_and_drift_are_loud() -> None:
    assert listener([Heard(1.0, 0.2)], []).listen()
    made = listener([Heard(1.0, 0.01), Heard(1.3, 0.01)], [])
    assert not made.listen()
    assert made.listen()
    assert made.noise.loud


def test_the_wait_ends_when_it_is_quiet() -> None:
    pauses: list[float] = []
    made = listener([Heard(1.0, 0.5), Heard(1.0, 0.5), Heard(1.0, 0.0)], pauses, wait_s=60)
    assert not made.wait_until_quiet()
    assert len(pauses) == 2


def test_one_wait_is_bounded() -> None:
    pauses: list[float] = []
    assert listener([Heard(1.0, 0.5)], pauses, wait_s=1.0).wait_until_quiet()
    assert sum(pauses) == 1.0


def test_all_waits_together_are_a_tenth_of_the_run() -> None:
    pauses: list[float] = []
    now = [0.0]
    made = listener([Heard(1.0, 0.5)], pauses, wait_s=60, clock=lambda: now[0])
    for seconds in (0, 0, 100, 100, 200):
        now[0] = seconds
        assert made.wait_until_quiet()
    assert sum(pauses) == 2 + 20


def test_where_there_is_nothing_to_hear_it_is_quiet() -> None:
    assert not listener([None], []).wait_until_quiet()
