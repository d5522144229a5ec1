"""Runs of a moved reference (`service.runtime.moved`), on a thread of their own while the main one compares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from service.runtime.moved import MORE, Run

__all__ = ["MovedRuns"]

Outputs = Mapping[str, Any]


class MovedRuns:
    """What `references`, opened when they are first asked for, make of inputs; each of their runs moves anew.

    With `ahead` inputs that are announced run meanwhile. All runs are then of one thread, in the order in which they
    were asked for, so that they have the same numbers each time.
    """

    def __init__(self, references: Callable[[], Iterable[Run]], *, ahead: bool) -> None:
        self._references = references
        self._thread = ThreadPoolExecutor(1, "moved") if ahead else None
        self._begun: list[tuple[Outputs, Future[list[Outputs]]]] = []

    def references(self) -> list[Run]:
        """Return what runs, opened, for the caller's own thread: what was announced has ended."""
        for _, future in self._begun:
            future.exception()
        return list(self._references())

    def announce(self, inputs: Outputs) -> None:
        """Begin the first runs on inputs that these will be asked for."""
        if self._thread is not None:
            self._begun.append((inputs, self._thread.submit(self._run, inputs, 1)))

    def first(self, inputs: Outputs) -> list[Outputs]:
        """Return the outputs of the first runs; none where there are no references. Raise what a run raises."""
        found = next((future for given, future in self._begun if given is inputs), None)
        self._begun = [each for each in self._begun if each[1] is not found]
        return self._asked(inputs, 1) if found is None else found.result()

    def more(self, inputs: Outputs) -> list[Outputs]:
        """Return those of `MORE` times as many runs."""
        return self._asked(inputs, MORE)

    def _asked(self, inputs: Outputs, times: int) -> list[Outputs]:
        if self._thread is None:
            return self._run(inputs, times)
        return self._thread.submit(self._run, inputs, times).result()

    def _run(self, inputs: Outputs, times: int) -> list[Outputs]:
        return [run(inputs) for _ in range(times) for run in self._references()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the run that is under way; none is begun after it."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
