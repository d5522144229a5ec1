"""CUDA graphs with a stand-in for the runtime's functions: what is captured, launched and timed, and what fails."""

from __future__ import annotations

from typing import Any

import pytest

from relaxc.service.runtime.cuda_graph import CudaRuntime, Graph


class Library:
    """The functions by name: each is noted, and gives the number that `errors` has for it."""

    def __init__(self, **errors: int) -> None:
        self.called: list[str] = []
        self._errors = errors

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> Any:
            if name == "cudaGetErrorString":
                return b"a wrong thing"
            self.called.append(name.removeprefix("cuda"))
            if name == "cudaEventElapsedTime":
                arguments[0]._obj.value = 6.0
            return self._errors.get(name, 0)

        self.__dict__[name] = function
        return function


def test_a_graph_has_the_calls_and_a_time_is_of_one() -> None:
    library = Library()
    cuda, calls = CudaRuntime(library), []
    graph = Graph(cuda, lambda *arguments: calls.append(arguments), [["a", 1], ["b", 2], ["c", 3]], 4)
    assert calls == [("a", 1), ("b", 2), ("c", 3), ("a", 1)]
    made = ["StreamBeginCapture", "StreamEndCapture", "GraphInstantiate", "GraphDestroy"]
    assert library.called[3:] == made
    assert graph.seconds() == pytest.approx(0.0015)  # 6 ms for four
    timed = ["EventRecord", "GraphLaunch", "EventRecord", "EventSynchronize", "EventElapsedTime"]
    assert library.called[7:] == timed
    assert len(calls) == 4
    del graph
    assert library.called[-1] == "GraphExecDestroy"


def test_what_fails_names_the_function() -> None:
    cuda = CudaRuntime(Library(cudaGraphInstantiate=700))
    with pytest.raises(RuntimeError, match=r"cudaGraphInstantiate: a wrong thing \(700\)"):
        Graph(cuda, lambda: None, [[]], 2)


def test_a_capture_ends_also_where_a_kernel_fails() -> None:
    library = Library()

    def kernel() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Graph(CudaRuntime(library), kernel, [[]], 2)
    assert library.called[-1] == "StreamEndCapture"
