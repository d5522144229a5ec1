"""A stand-in for a GPU: kernels are libraries for this CPU, or Python functions by the name of the library."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from relaxc.service.lowering.build import KERNEL
from relaxc.service.tuning.measure.gpu_worker import Alone
from relaxc.service.tuning.measure.messages import Heard
from relaxc.service.tuning.measure.trials import Turns

__all__ = ["StandIn", "open_device"]


def open_device(alone: Alone) -> StandIn:
    """Return the stand-in."""
    return StandIn(alone)


class StandIn:
    """See `trials.Place`: all but the device's own calls is what a GPU's runner does."""

    def __init__(self, alone: Alone) -> None:
        self._alone = alone

    @contextmanager
    def place(self) -> Iterator[StandIn]:
        """Itself."""
        yield self

    def load(self, library: str) -> Callable[..., Any]:
        """Return what the library is, or a function that does what its name says."""
        if Path(library).exists():
            return tvm_ffi.load_module(library)[KERNEL]
        return lambda x, y: _DOES[Path(library).name](x, y)

    def put(self, value: Any) -> Any:
        """Return a tensor in this process's memory."""
        return tvm.runtime.tensor(value)

    def lists(self, values: Sequence[Any], weights: Sequence[int], weight_bytes: int) -> list[list[Any]]:
        """Return three lists."""
        return [[self.put(value) for value in values] for _ in range(3)]

    def awaken(self, seconds: float) -> None:
        """Do nothing."""

    def timer(self, kernel: Callable[..., Any], turns: Turns) -> Callable[[], float]:
        """Time a call with each list."""

        def run() -> float:
            start = time.perf_counter()
            for arguments in turns.lists:
                kernel(*arguments)
            return (time.perf_counter() - start) / len(turns.lists)

        return run

    def alone(self) -> AbstractContextManager[None]:
        """Return what the runner gave."""
        return self._alone()

    def listen(self) -> Heard:
        """Return a quiet machine."""
        return Heard(1e-3, 0.0)


def _good(x: Any, y: Any) -> None:
    y.copyfrom(x.numpy() + np.float32(1))


def _wrong(x: Any, y: Any) -> None:
    y.copyfrom(x.numpy() + np.float32(1.5))


def _fault(x: Any, y: Any) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def _hang(x: Any, y: Any) -> None:
    time.sleep(1000)


_DOES = {"good": _good, "other": _good, "wrong": _wrong, "fault": _fault, "hang": _hang}
