"""When each PrimFunc of a run starts and ends: by the host's clock on a CPU, by events on a GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import tvm_ffi

from relaxc.service.runtime.cuda import cuda_runtime
from relaxc.service.runtime.cuda_graph import CudaRuntime
from relaxc.service.runtime.session import Session
from relaxc.service.runtime.tvm_runtime import wait

__all__ = ["Clock", "DeviceClock", "Event", "HostClock"]

Event = tuple[str, float, float]
"""A call of a PrimFunc: its name, its start after the run's in milliseconds, and how many it took."""


class Clock(Protocol):
    """Times a run of a session, and the calls of PrimFuncs in it."""

    def run(self, inputs: Mapping[str, Any]) -> tuple[float, list[Event]]:
        """Run once on these inputs; return the milliseconds of the run, and its calls in order."""
        ...


class HostClock:
    """Reads the host's clock around each call; those of the virtual machine's own are left out."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls: list[tuple[str, int, int]] = []
        self._start = 0

    def run(self, inputs: Mapping[str, Any]) -> tuple[float, list[Event]]:
        """See `Clock`."""
        self._calls.clear()
        base = time.perf_counter_ns()
        self._session.run_instrumented(inputs, self._note)
        total = (time.perf_counter_ns() - base) / 1e6
        return total, [(name, (start - base) / 1e6, (end - start) / 1e6) for name, start, end in self._calls]

    def _note(self, _function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:
        if name.startswith("vm."):
            return 0
        now = time.perf_counter_ns()
        if before:
            self._start = time.perf_counter_ns()
        else:
            self._calls.append((name, self._start, now))
        return 0


class DeviceClock:
    """Puts events on the stream around each call.

    What the program captures as a CUDA graph is called once, when it is captured, and then launched as a whole. So the
    program is a twin of the session's, whose graph has the events in it: each launch records them anew. They part
    kernels that overlap otherwise; the run is that of the session itself, without them.
    """

    def __init__(self, session: Session, cuda: CudaRuntime | None = None) -> None:
        self._session, self._twin = session, session.twin()
        self._cuda = cuda or CudaRuntime(cuda_runtime())
        self._cuda.call("cudaSetDevice", session.device.index)
        self._made: list[Any] = []
        self._base, self._end = self._event(), self._event()
        self._captured: list[tuple[str, Any, Any]] = []
        self._called: list[tuple[str, Any, Any]] = []
        self._free: list[Any] = []
        self._pending: Any = None
        self._on_device: dict[str, tvm_ffi.Tensor] = {}

    def run(self, inputs: Mapping[str, Any]) -> tuple[float, list[Event]]:
        """See `Clock`. The inputs are those of the first run, and are copied to the device then."""
        if not self._on_device:
            self._on_device = self._session.to_device(inputs)
            self._session.on_device(self._on_device)
            self._twin.run_instrumented(self._on_device, self._note)
        return self._whole(), self._calls()

    def _whole(self) -> float:
        """Milliseconds of the session's own run, on the device."""
        self._cuda.record(self._base, 0)
        self._session.on_device(self._on_device)
        self._cuda.record(self._end, 0)
        wait(self._session.device)
        return self._cuda.milliseconds(self._base, self._end)

    def _calls(self) -> list[Event]:
        self._free += [event for _, *both in self._called for event in both]
        self._called.clear()
        self._cuda.record(self._base, 0)
        self._twin.run_instrumented(self._on_device, self._note)
        wait(self._session.device)
        noted = [
            (name, self._cuda.milliseconds(self._base, start), self._cuda.milliseconds(start, end))
            for name, start, end in (*self._captured, *self._called)
        ]
        return sorted(noted, key=lambda event: event[1])

    def _note(self, _function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> int:
        if name.startswith("vm."):
            return 0
        stream = tvm_ffi.get_raw_stream(self._session.device)
        captured = self._cuda.is_capturing(stream)
        event = self._free.pop() if self._free and not captured else self._event()
        self._cuda.record(event, stream, captured=captured)
        if before:
            self._pending = event
        else:
            (self._captured if captured else self._called).append((name, self._pending, event))
        return 0

    def _event(self) -> Any:
        self._made.append(self._cuda.event())
        return self._made[-1]

    def __del__(self) -> None:
        for event in getattr(self, "_made", ()):
            self._cuda.drop(event)
