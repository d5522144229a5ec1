"""Timing what runs in processes of its own, by turns: the others are stopped meanwhile, with all of their threads."""

from __future__ import annotations

import importlib
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from relaxc.service.errors import ArtifactError
from relaxc.service.runtime.bench import BenchReport, report_of
from relaxc.service.runtime.others import Others

__all__ = ["Side", "by_turns", "main"]

_ROUNDS = 12
"""Turns of each side; of fewer no interval could be told."""
_LEAST_CALLS = 3
_WARM_CALLS = 2
"""Before a turn's timed calls: the caches are the other's, and threads have been stopped."""


class Side:
    """A process that makes a callable once, and calls it when it is its turn. Stopped in between."""

    def __init__(self, name: str, make: str, *arguments: Any, streams: int = 1) -> None:
        """`make` is `module:function`; what that returns for the arguments is called by `streams` threads at a time."""
        self.name = name
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.pid = self._process.pid
        try:
            self._ask((make, arguments, streams))
        except BaseException:
            self.close()
            raise

    def outputs(self) -> Any:
        """Return what one call returns."""
        return self._ask(None)

    def turn(self, seconds: float) -> tuple[list[float], float]:
        """Return the milliseconds of each call of a turn, and the seconds that all took together."""
        found: tuple[list[float], float] = self._ask(seconds)
        return found

    def stop(self) -> None:
        """Take all cores from it."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Give them back."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        for file in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                file.close()  # type: ignore[union-attr]
        self._process.wait()

    def _ask(self, question: Any) -> Any:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None and back is not None
        try:
            pickle.dump(question, to, protocol=5)
            to.flush()
            answer, failure = pickle.load(back)  # noqa: S301  # what our own process wrote
        except (EOFError, BrokenPipeError) as error:
            raise ArtifactError(f"the process of {self.name} ended by itself") from error
        if failure is not None:
            raise ArtifactError(f"{self.name} failed: {failure}")
        return answer


def by_turns(
    sides: Mapping[str, Callable[[], Side]],
    *,
    baseline: str | None,
    measure_s: float,
    warmup_s: float = 0.5,
    seed: int = 0,
) -> tuple[BenchReport, dict[str, Any]]:
    """Time the sides for `measure_s` seconds in all, and return the report and the outputs of each.

    A round has a turn of each, in an order drawn anew; a side that has no turn is stopped. Raise ArtifactError where
    one fails.
    """
    order, rng = list(sides), random.Random(seed)
    made: dict[str, Side] = {}
    times: dict[str, list[list[float]]] = {name: [] for name in sides}
    taken = dict.fromkeys(sides, 0.0)
    with ExitStack() as open_sides:
        for name, make in sides.items():
            made[name] = make()
            open_sides.callback(made[name].close)
        outputs = {name: side.outputs() for name, side in made.items()}
        for side in made.values():
            side.turn(warmup_s)
            side.stop()
        others = Others([os.getpid(), *(side.pid for side in made.values())])
        for _ in range(_ROUNDS):
            rng.shuffle(order)
            for name in order:
                made[name].go_on()
                found, seconds = made[name].turn(measure_s / _ROUNDS / len(order))
                made[name].stop()
                times[name].append(found)
                taken[name] += seconds
        busy = others.cores()
    return report_of(times, taken, baseline, warmup_s, busy), outputs


def main() -> None:
    """Serve one `Side` until it goes."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a framework prints is no answer
    make, arguments, streams = pickle.load(questions)  # noqa: S301  # what our own process wrote

    call: list[Callable[[], Any]] = []

    def made() -> None:
        module, _, function = make.partition(":")
        call.append(getattr(importlib.import_module(module), function)(*arguments))

    _answer(answers, made)
    while True:
        try:
            seconds = pickle.load(questions)  # noqa: S301
        except EOFError:
            return
        _answer(answers, call[0] if seconds is None else partial(_turn, call[0], seconds, streams))


def _answer(answers: Any, work: Callable[[], Any]) -> None:
    found, failure = None, None
    try:
        found = work()
    except Exception as error:  # noqa: BLE001  # whatever a framework raises is told to who asked
        failure = f"{type(error).__name__}: {error}"
    pickle.dump((found, failure), answers, protocol=5)
    answers.flush()


def _turn(call: Callable[[], Any], seconds: float, streams: int) -> tuple[list[float], float]:
    for _ in range(_WARM_CALLS):
        call()
    times: list[list[float]] = [[] for _ in range(streams)]
    start = time.perf_counter()
    end = start + seconds
    if streams == 1:
        _calls(call, end, times[0])
    else:
        threads = [threading.Thread(target=_calls, args=(call, end, each)) for each in times]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    taken = time.perf_counter() - start
    return [one for each in times for one in each], taken


def _calls(call: Callable[[], Any], end: float, times: list[float]) -> None:
    while len(times) < _LEAST_CALLS or time.perf_counter() < end:
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1e6)


if __name__ == "__main__":
    main()
