"""Events around the calls of a GPU program, with stand-ins: what is captured once is timed in each run."""

from __future__ import annotations

from typing import Any

import pytest
import tvm_ffi

from relaxc.service.runtime import clocks
from relaxc.service.runtime.clocks import DeviceClock


class Cuda:
    """Events are numbers, a millisecond apart; what a graph captured is recorded again when it is launched."""

    def __init__(self) -> None:
        self.now = 0.0
        self.times: dict[int, float] = {}
        self.in_graph: list[int] = []
        self.capturing = False
        self.dropped: list[int] = []
        self._made = 0

    def call(self, name: str, *_arguments: Any) -> None:
        assert name == "cudaSetDevice"

    def event(self) -> int:
        self._made += 1
        return self._made

    def drop(self, event: int) -> None:
        self.dropped.append(event)

    def is_capturing(self, stream: int) -> bool:
        return self.capturing

    def record(self, event: int, stream: int, *, captured: bool = False) -> None:
        assert captured == self.capturing
        if captured:
            self.in_graph.append(event)
        else:
            self._come(event)

    def launch(self) -> None:
        for event in self.in_graph:
            self._come(event)

    def milliseconds(self, start: int, end: int) -> float:
        return self.times[end] - self.times[start]

    def _come(self, event: int) -> None:
        self.now += 1.0
        self.times[event] = self.now


class Program:
    """A session whose program has a graph of two kernels, and one kernel behind it."""

    device = tvm_ffi.device("cpu", 0)

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.captured = False

    def twin(self) -> Program:
        return Program(self.cuda)

    def to_device(self, inputs: Any) -> Any:
        return dict(inputs)

    def on_device(self, _inputs: Any) -> None:
        self.cuda.now += 2.5

    def run_instrumented(self, _inputs: Any, note: Any) -> None:
        def called(name: str) -> None:
            assert note(None, name, True, None) == 0 and note(None, name, False, None) == 0

        note(None, "vm.builtin.cuda_graph.run_or_capture", True, None)
        if not self.captured:
            for self.cuda.capturing in (False, True):  # TVM runs what it will capture once before
                called("one")
                called("two")
            self.cuda.capturing, self.captured = False, True
        else:
            self.cuda.launch()
        called("after")


def test_what_is_captured_is_timed_in_each_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "wait", lambda _device: None)
    cuda = Cuda()
    clock = DeviceClock(Program(cuda), cuda)  # type: ignore[arg-type]
    for _ in range(3):
        total, events = clock.run({"x": 1})
        assert total == 3.5  # the session's own run, with no events in it
        assert [(name, took) for name, _, took in events] == [("one", 1.0), ("two", 1.0), ("after", 1.0)]
        assert [start for _, start, _ in events] == [1.0, 3.0, 5.0]
    del clock
    assert sorted(cuda.dropped) == sorted(cuda.times)
