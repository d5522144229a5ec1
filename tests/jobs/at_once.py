"""The same thing done by many threads at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["at_once"]


def at_once(count: int, work: Callable[[int], object]) -> list[Exception]:
    """What is raised by so many threads that do it at the same time."""
    errors: list[Exception] = []
    barrier = threading.Barrier(count)

    def go(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except Exception as error:  # noqa: BLE001  # the test looks at it
            errors.append(error)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors
