"""Calls of something that may never answer: each ends in time for who asked, and few wait for it at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from relaxc.service.errors import StoreUnreachable

__all__ = ["Deadlines"]

T = TypeVar("T")

_SLOT_WAIT_S = 5.0


class Deadlines:
    """At most `most` calls at a time, each in a thread of its own, which is left to itself when its time is over.

    Once one was, or could not connect, for `rest_s` seconds all fail at once: threads that others need do not all come
    to wait for the same.
    """

    def __init__(self, most: int, rest_s: float) -> None:
        self._slots = threading.BoundedSemaphore(most)
        self._rest_s = rest_s
        self._resting_until = 0.0

    def call(self, what: str, limit_s: float, function: Callable[[], T]) -> T:
        """Return what `function` returns, or raise what it does; StoreUnreachable where there is no answer in time."""
        if time.monotonic() < self._resting_until:
            raise StoreUnreachable(f"{what}: the bucket has not answered lately, and is not asked now")
        if not self._slots.acquire(timeout=min(limit_s, _SLOT_WAIT_S)):
            raise StoreUnreachable(f"{what}: too many calls wait for the bucket")
        future: Future[T] = Future()
        threading.Thread(target=self._run, args=(future, function), name="bucket", daemon=True).start()
        try:
            return future.result(limit_s)
        except StoreUnreachable:
            self._rest()
            raise
        except TimeoutError as error:
            self._rest()
            raise StoreUnreachable(f"{what}: the bucket has not answered in {limit_s:g} s") from error

    def _rest(self) -> None:
        self._resting_until = time.monotonic() + self._rest_s

    def _run(self, future: Future[T], function: Callable[[], T]) -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001  # told to who waits, if he still does
            future.set_exception(error)
        finally:
            self._slots.release()
