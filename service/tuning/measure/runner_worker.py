"""The local runner: loads candidates into its own memory, which it may die of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import Connection
from typing import Any

import tvm
import tvm_ffi

from relaxc.service import machine
from relaxc.service.errors import in_one_line
from relaxc.service.lowering.build import KERNEL
from relaxc.service.runtime.tensors import Array
from relaxc.service.runtime.threads import use_threads
from relaxc.service.tuning.measure.messages import Compare, Heard, Listen, Ran, Request, answer_all
from relaxc.service.tuning.measure.outcome import MeasureLimits
from relaxc.service.tuning.measure.probe import Probe
from relaxc.service.tuning.measure.trials import Trials, Turns
from relaxc.service.tuning.measure.weight_copies import WeightCopies

__all__ = ["answer", "serve"]


def serve(connection: Connection, config: dict[str, Any]) -> None:
    """Answer every request until the tuner hangs up."""
    machine.cpu()  # asks the kernel for AMX, which candidates may be made of
    use_threads(config["threads"])
    place = _Memory(config["threads"])
    trials = Trials(place, MeasureLimits(**config["limits"]))
    answer_all(connection, lambda request: place.listen() if isinstance(request, Listen) else answer(trials, request))


def answer(trials: Trials, request: Request) -> Ran | list[Ran]:
    """Return what came of a request; an exception of the candidate's is its crash."""
    try:
        return trials.answer(request)
    except Exception as error:  # noqa: BLE001  # a kernel's assertions come as whatever TVM makes of them
        failed = Ran("crashed", detail=in_one_line(error))
    return [failed] * len(request.libraries) if isinstance(request, Compare) else failed


class _Memory:
    """This process; see `trials.Place` and `trials.Device`."""

    def __init__(self, threads: int) -> None:
        self._probe = Probe(threads)
        self._copies = WeightCopies()

    @contextmanager
    def place(self) -> Iterator[_Memory]:
        yield self

    def load(self, library: str) -> Callable[..., Any]:
        return tvm_ffi.load_module(library)[KERNEL]

    def put(self, value: Array | int) -> Any:
        return value if isinstance(value, int) else tvm.runtime.tensor(value)

    def lists(self, values: Sequence[Array | int], weights: Sequence[int], weight_bytes: int) -> list[list[Any]]:
        return self._copies.lists(values, weights, weight_bytes)

    def awaken(self, seconds: float) -> None:
        self._probe.spin(seconds)

    def timer(self, kernel: Callable[..., Any], turns: Turns) -> Callable[[], float]:
        return lambda: self._seconds(kernel, turns.next())

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _seconds(self, kernel: Callable[..., Any], arguments: Sequence[Any]) -> float:
        self._probe.flush()
        start = time.perf_counter_ns()
        kernel(*arguments)
        return (time.perf_counter_ns() - start) / 1e9

    def listen(self) -> Heard:
        found = self._probe.listen()
        return Heard(found.seconds, found.spread)
