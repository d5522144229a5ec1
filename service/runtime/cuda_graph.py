"""CUDA graphs and events through the runtime library that is loaded: what torch has, without torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["CudaRuntime", "Graph"]

_LIBRARY = "libcudart.so.13"
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal
_CAPTURING = 1  # cudaStreamCaptureStatusActive
_EXTERNAL = 1  # cudaEventRecordExternal: a captured event is recorded again with each launch of the graph
_ON_DEVICE = 3  # cudaMemcpyDeviceToDevice


class CudaRuntime:
    """A stream, two events, and the calls that graphs are made of. Every failure is a RuntimeError that names it."""

    def __init__(self, library: Any = None) -> None:
        """`library` is the CUDA runtime; the one that this process has loaded without it."""
        self._library = ctypes.CDLL(_LIBRARY) if library is None else library
        self._library.cudaGetErrorString.restype = ctypes.c_char_p
        self._stream, self._start, self._end = (ctypes.c_void_p() for _ in range(3))
        self.call("cudaStreamCreate", ctypes.byref(self._stream))
        self.call("cudaEventCreate", ctypes.byref(self._start))
        self.call("cudaEventCreate", ctypes.byref(self._end))

    @property
    def stream_handle(self) -> int:
        """The stream as a number."""
        return self._stream.value or 0

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the runtime. Raise RuntimeError with its name and what it says."""
        error = getattr(self._library, name)(*arguments)
        if error:
            said = self._library.cudaGetErrorString(error)
            raise RuntimeError(f"{name}: {(said or b'').decode()} ({error})")

    def event(self) -> ctypes.c_void_p:
        """Return a new event, for `record`; `drop` ends it."""
        made = ctypes.c_void_p()
        self.call("cudaEventCreate", ctypes.byref(made))
        return made

    def drop(self, event: ctypes.c_void_p) -> None:
        """Give an event back, if the device still takes it."""
        self._library.cudaEventDestroy(event)

    def is_capturing(self, stream: int) -> bool:
        """Return whether what is put on the stream becomes a part of a graph."""
        status = ctypes.c_int()
        self.call("cudaStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status))
        return status.value == _CAPTURING

    def record(self, event: ctypes.c_void_p, stream: int, *, captured: bool = False) -> None:
        """Note the time at which the stream comes here; `captured`: at each launch of the graph that is captured."""
        self.call("cudaEventRecordWithFlags", event, ctypes.c_void_p(stream), _EXTERNAL if captured else 0)

    def milliseconds(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Return the time between two events that have come, to half a microsecond."""
        passed = ctypes.c_float()
        self.call("cudaEventElapsedTime", ctypes.byref(passed), start, end)
        return passed.value

    def wait(self) -> None:
        """Wait until the stream is empty."""
        self.call("cudaStreamSynchronize", self._stream)

    def copy(self, target: ctypes.c_void_p, source: ctypes.c_void_p, size: int) -> None:
        """Copy within the device's memory, on the stream."""
        self.call("cudaMemcpyAsync", target, source, ctypes.c_size_t(size), _ON_DEVICE, self._stream)

    def captured(self, launch: Callable[[], None]) -> ctypes.c_void_p:
        """Return a graph, ready to be launched, of what `launch` puts on the stream."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cudaStreamBeginCapture", self._stream, _THREAD_LOCAL)
        try:
            launch()
        finally:
            self.call("cudaStreamEndCapture", self._stream, ctypes.byref(graph))
        self.call("cudaGraphInstantiate", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
        self.call("cudaGraphDestroy", graph)
        return ready

    def launch(self, graph: ctypes.c_void_p) -> None:
        """Put a graph on the stream."""
        self.call("cudaGraphLaunch", graph, self._stream)

    def forget(self, graph: ctypes.c_void_p) -> None:
        """Give a graph's memory back, if the device still takes it."""
        self._library.cudaGraphExecDestroy(graph)

    def timed(self, launch: Callable[[], None]) -> float:
        """Return the seconds that the device takes for what `launch` puts on the stream."""
        self.call("cudaEventRecord", self._start, self._stream)
        launch()
        self.call("cudaEventRecord", self._end, self._stream)
        self.call("cudaEventSynchronize", self._end)
        return self.milliseconds(self._start, self._end) / 1e3


class Graph:
    """`count` calls of a kernel in one CUDA graph, with one list of arguments after the other.

    A launch of its own takes longer than most kernels; in a graph they follow each other as in a model.
    """

    def __init__(self, cuda: CudaRuntime, kernel: Callable[..., Any], lists: Sequence[list[Any]], count: int) -> None:
        """The stream of `cuda` must be the current one."""
        self._cuda, self._count = cuda, count

        def calls() -> None:
            for index in range(count):
                kernel(*lists[index % len(lists)])

        self._graph: ctypes.c_void_p | None = cuda.captured(calls)

    def __del__(self) -> None:
        graph = getattr(self, "_graph", None)
        if graph is not None:
            self._cuda.forget(graph)

    def seconds(self) -> float:
        """Return the time of a call, from one launch of the graph."""
        graph = self._graph
        assert graph is not None
        return self._cuda.timed(lambda: self._cuda.launch(graph)) / self._count
