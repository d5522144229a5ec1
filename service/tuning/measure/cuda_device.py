"""The first CUDA device of this machine, as a runner of candidates needs it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from relaxc.service.lowering.build import KERNEL
from relaxc.service.runtime.cuda import load_runtime
from relaxc.service.runtime.cuda_graph import CudaRuntime, Graph
from relaxc.service.runtime.tensors import Array
from relaxc.service.tuning.measure.gpu_worker import Alone
from relaxc.service.tuning.measure.messages import Heard
from relaxc.service.tuning.measure.timing import summary
from relaxc.service.tuning.measure.trials import Turns

__all__ = ["CudaDevice", "calls_in_graph", "copies_for", "open_device"]

_ROTATED_BYTES = 120 << 20
"""Arguments rotate over more than twice the L2 cache of any device: what is read comes from memory."""
_MOST_COPIES = 32
_GRAPH_S = 0.003
"""About as long as a graph takes: events are exact to half a microsecond."""
_MOST_CALLS = 100
_MOST_GRAPH_S = 0.05
_SCRATCH_BYTES = 64 << 20
_LISTEN_RUNS, _LISTEN_COPIES = 9, 8
_PROBED = 8


def open_device(alone: Alone) -> CudaDevice:
    """Return the device. Raise MachineMismatch where the driver or the runtime is missing."""
    load_runtime()
    return CudaDevice(alone)


def copies_for(size_bytes: int) -> int:
    """Return how many sets of arguments of that size do not fit into the cache together."""
    return max(2, min(_MOST_COPIES, _ROTATED_BYTES // max(size_bytes, 1) + 1))


class CudaDevice:
    """See `trials.Place` and `trials.Device`: a kernel is timed in a CUDA graph of many calls."""

    def __init__(self, alone: Alone) -> None:
        self._alone = alone
        self._device = tvm.runtime.device("cuda", 0)
        with alone():
            self._scratch = [tvm.runtime.empty((_SCRATCH_BYTES,), "uint8", self._device) for _ in range(2)]
            self._cuda = CudaRuntime()

    @contextmanager
    def place(self) -> Iterator[CudaDevice]:
        """See `trials.Device`."""
        yield self

    def load(self, library: str) -> Callable[..., Any]:
        """See `trials.Place`."""
        return tvm_ffi.load_module(library)[KERNEL]

    def put(self, value: Array | int) -> Any:
        """See `trials.Place`."""
        return value if isinstance(value, int) else tvm.runtime.tensor(value, self._device)

    def lists(self, values: Sequence[Array | int], weights: Sequence[int], weight_bytes: int) -> list[list[Any]]:
        """See `trials.Place`. Activations rotate as weights do: a device has one cache, and all of it is emptied."""
        first = [self.put(value) for value in values]
        size = sum(value.nbytes for value in values if isinstance(value, np.ndarray))
        others = range(copies_for(size) - 1)
        return [first, *([one if isinstance(one, int) else one.copyto(self._device) for one in first] for _ in others)]

    def alone(self) -> AbstractContextManager[None]:
        """See `trials.Place`."""
        return self._alone()

    def awaken(self, seconds: float) -> None:
        """See `trials.Place`: a device that idled has a low clock."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._copy()
            self._cuda.wait()

    def timer(self, kernel: Callable[..., Any], turns: Turns) -> Callable[[], float]:
        """See `trials.Place`: a graph of about 3 ms, whatever the kernel takes, and of two calls at least.

        One whose single calls are that slow goes over few arguments.
        """
        with tvm_ffi.use_raw_stream(self._device, self._cuda.stream_handle):
            for arguments in turns.lists[:2]:
                kernel(*arguments)  # loads the code, which a capture may not
            self._cuda.wait()
            probe = Graph(self._cuda, kernel, turns.lists, _PROBED if len(turns.lists) > 2 else 2)
            probe.seconds()
            count = calls_in_graph(probe.seconds(), len(turns.lists))
            return Graph(self._cuda, kernel, turns.lists, count).seconds

    def listen(self) -> Heard:
        """Return the time of copies within the device's memory, which is the same whenever nobody else uses it."""
        with self._alone():
            self.awaken(0.002)
            found = summary([self._cuda.timed(self._copies) / _LISTEN_COPIES for _ in range(_LISTEN_RUNS)], tail=0.25)
        return Heard(found.seconds, found.spread)

    def _copies(self) -> None:
        for _ in range(_LISTEN_COPIES):
            self._copy()

    def _copy(self) -> None:
        source, target = (ctypes.c_void_p(tensor.data_ptr()) for tensor in self._scratch)
        self._cuda.copy(target, source, _SCRATCH_BYTES)


def calls_in_graph(call_s: float, lists: int) -> int:
    """Return how many calls of that time a graph has: over all lists, if that takes no more than 50 ms."""
    call_s = max(call_s, 1e-7)
    return max(2, min(lists, int(_MOST_GRAPH_S / call_s)), min(_MOST_CALLS, int(_GRAPH_S / call_s)))
