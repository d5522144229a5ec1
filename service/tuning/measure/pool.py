"""Workers of one role: each does one job at a time, and a job that kills or outlives its worker is answered for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Literal, Protocol

from relaxc.service.tuning.measure.zygote import TuneZygote, Worker

__all__ = ["Done", "Lost", "Pool", "Seats", "collect"]


@dataclass(frozen=True, slots=True)
class Lost:
    """The answer for a job whose worker died (`crashed`), or was killed because its time was over (`hung`)."""

    kind: Literal["crashed", "hung"]
    detail: str


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to the job that was submitted as `ident`."""

    ident: Hashable
    answer: Any


class Seats(Protocol):
    """What does jobs for who submits them, some at a time: a Pool of workers, or builders on other machines."""

    @property
    def free(self) -> int:
        """How many more jobs can be submitted now."""
        ...

    @property
    def busy(self) -> int:
        """How many jobs are under way."""
        ...

    def submit(self, ident: Hashable, job: Any, limit_s: float) -> None:
        """Begin `job`; `collect` returns its answer under `ident`."""
        ...

    def end_idle(self) -> None:
        """Have the next job done by somebody fresh."""
        ...

    def drop_busy(self) -> None:
        """Forget what is under way."""
        ...

    def connections(self) -> list[Any]:
        """Return what to wait for while jobs are under way."""
        ...

    def next_deadline(self) -> float:
        """Return when the time of one is over, by the monotonic clock; infinity where none is under way."""
        ...

    def ready(self, connections: Sequence[object], now: float) -> Iterable[Done]:
        """Yield what has come to its end, over those of its `connections` that can be read, or by `now`."""
        ...


@dataclass(slots=True)
class _Seat:
    worker: Worker | None = None
    ident: Hashable = None
    deadline: float | None = None
    limit_s: float = 0.0

    @property
    def busy(self) -> bool:
        return self.deadline is not None


class Pool:
    """`count` workers at most, which start when there is a job for them."""

    def __init__(self, zygote: TuneZygote, role: str, count: int, config: dict[str, Any]) -> None:
        self.role = role
        self._zygote, self._config = zygote, config
        self._seats = [_Seat() for _ in range(count)]

    @property
    def free(self) -> int:
        """How many more jobs can be submitted now."""
        return sum(not seat.busy for seat in self._seats)

    @property
    def busy(self) -> int:
        """How many jobs are under way."""
        return len(self._seats) - self.free

    @property
    def pids(self) -> list[int]:
        """The workers that there are, busy or not."""
        return [seat.worker.pid for seat in self._seats if seat.worker is not None]

    def submit(self, ident: Hashable, job: Any, limit_s: float) -> None:
        """Give `job` to a free worker; `collect` returns its answer, under `ident`, after `limit_s` at the latest."""
        seat = next(seat for seat in self._seats if not seat.busy)
        if seat.worker is not None and seat.worker.connection.poll():  # it ended while it was idle
            self._end(seat)
        if seat.worker is None:
            seat.worker = self._zygote.spawn(self.role, self._config)
        seat.ident, seat.limit_s, seat.deadline = ident, limit_s, time.monotonic() + limit_s
        with contextlib.suppress(OSError):  # it ended just now: `collect` finds the connection closed
            seat.worker.connection.send(job)

    def end_idle(self) -> None:
        """End the workers that are not busy; the next job gets a fresh one."""
        for seat in self._seats:
            if not seat.busy:
                self._end(seat)

    def drop_busy(self) -> None:
        """End the busy workers, and forget what they were doing."""
        for seat in self._seats:
            if seat.busy:
                self._end(seat)

    @staticmethod
    def _end(seat: _Seat) -> str:
        how = seat.worker.end() if seat.worker is not None else ""
        seat.worker, seat.ident, seat.deadline = None, None, None
        return how

    def ready(self, connections: Sequence[object], now: float) -> Iterable[Done]:
        """See `Seats`."""
        for seat in self._seats:
            if seat.deadline is None or seat.worker is None:
                continue
            ident = seat.ident
            if seat.worker.connection in connections:
                yield Done(ident, self._answer(seat))
            elif now > seat.deadline:
                self._end(seat)
                yield Done(ident, Lost("hung", f"it was not done after {seat.limit_s:g} s"))

    def _answer(self, seat: _Seat) -> Any:
        assert seat.worker is not None
        try:
            answer = seat.worker.connection.recv()
        except (EOFError, OSError):
            return Lost("crashed", self._end(seat))
        seat.ident, seat.deadline = None, None
        return answer

    def connections(self) -> list[Any]:
        """See `Seats`."""
        return [seat.worker.connection for seat in self._seats if seat.busy and seat.worker is not None]

    def next_deadline(self) -> float:
        """See `Seats`."""
        return min((seat.deadline for seat in self._seats if seat.deadline is not None), default=float("inf"))


def collect(*pools: Seats) -> list[tuple[Seats, Done]]:
    """Wait until at least one of the busy workers of `pools` has answered, died or passed its time."""
    while True:
        connections = [connection for pool in pools for connection in pool.connections()]
        if not connections:
            return []
        left = min(pool.next_deadline() for pool in pools) - time.monotonic()
        ready = wait(connections, max(0.0, left) + 0.001)
        now = time.monotonic()
        found = [(pool, done) for pool in pools for done in pool.ready(ready, now)]
        if found:
            return found
