"""Small programs without the virtual machine: the kernels of a run, noted once for given shapes, and called again.

For a network of a few microseconds the machine's own work on shapes and memory takes longer than its kernels. All of
that depends on the shapes alone, unless the program branches or sizes something by values: such is not replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm_ffi

from relaxc.service.errors import ArtifactCorrupt, ArtifactError
from relaxc.service.request import TargetSpec
from relaxc.service.runtime.dims import evaluate
from relaxc.service.runtime.library import failure
from relaxc.service.runtime.tensors import Array, Extent, extent, is_fit, numpy_view, wrap_numpy
from relaxc.service.runtime.threads import call

__all__ = ["FAILURES", "Instrument", "Recorder", "Replay", "Work", "fits"]

FAILURES = (RuntimeError, ValueError, TypeError, MemoryError)
"""What a program may raise."""

_KNOWN = frozenset(
    f"vm.builtin.{name}"
    for name in (
        "alloc_shape_heap", "alloc_storage", "alloc_tensor", "check_shape_info", "check_tensor_info",
        "check_tuple_info", "copy", "make_prim_value", "make_shape", "make_tuple", "match_shape", "null_value",
        "reshape", "shape_of", "tuple_getitem",
    )
)  # fmt: skip
"""What the machine calls for shapes and memory; `copy` passes a value on. None of them reads an element."""

_MAX_BYTES = 1 << 20
_MAX_STEPS = 256
_MAX_WEIGHT_BYTES = 16 << 20
_LAUNCH_S = 5e-6
_FLOPS_S, _BYTES_S = 20e9, 10e9
"""A launch on several threads; what one thread does at the least, roughly."""

Instrument = Callable[..., int]
"""Called as (function, name, before_run, result, *arguments) around every call that a program makes; returns 0."""

Step = tuple[Any, tuple[Any, ...]]


def fits(target: TargetSpec, schedule: Sequence[Any], weights: Sequence[Extent]) -> bool:
    """Return whether a program may be small enough to be replayed. It is a question of time alone."""
    size = sum(end - start for start, end in weights)
    return target.kind != "cuda" and len(schedule) <= _MAX_STEPS and size <= _MAX_WEIGHT_BYTES


class Work:
    """What a program's kernels do, as its manifest says: whether threads are worth their launch."""

    def __init__(self, schedule: Sequence[Mapping[str, Any]], threads: int) -> None:
        self._rows = {row.get("function"): row for row in schedule if isinstance(row, Mapping)}
        self._threads = threads

    def threads(self, functions: Sequence[str], sizes: Mapping[str, int]) -> int:
        """Return 1 where these calls gain less by more threads than their launches take, else all threads."""
        try:
            seconds = sum(self._seconds(self._rows[name], sizes) for name in functions)
        except (ArtifactCorrupt, KeyError, TypeError, ZeroDivisionError, OverflowError):
            return self._threads
        saved = seconds * (1 - 1 / self._threads)
        return 1 if saved < _LAUNCH_S * len(functions) else self._threads

    @staticmethod
    def _seconds(row: Mapping[str, Any], sizes: Mapping[str, int]) -> float:
        return max(evaluate(row["flops"], sizes) / _FLOPS_S, evaluate(row["bytes"], sizes) / _BYTES_S)


class Recorder:
    """Notes the kernels that a run calls: an instrument of the virtual machine."""

    def __init__(self, library: Any, weights: Sequence[Extent]) -> None:
        self._library = library
        self._weights = weights
        self._heap: int | None = None
        self._held: dict[int, int] = {}
        self.allocated: set[int] = set()
        """Addresses of the tensors that the run allocates."""
        self.names: list[str] = []
        self.steps: list[Step] | None = []
        """None where the run cannot be replayed."""

    def __call__(self, _function: Any, name: str, before: bool, result: Any, *arguments: Any) -> int:
        """Note a call; 0 has the machine make it."""
        if self.steps is None or (before and name in _KNOWN):
            return 0
        if name == "vm.builtin.alloc_shape_heap":
            self._heap = result.data_ptr() if isinstance(result, tvm_ffi.Tensor) else None
        elif name == "vm.builtin.alloc_tensor":
            self.allocated.add(result.data_ptr())
        elif before and not self._is_shape_function(arguments):
            self._note(name, arguments)
        return 0

    def _is_shape_function(self, arguments: tuple[Any, ...]) -> bool:
        """It computes sizes out of sizes, in the machine's heap for them."""
        match arguments:
            case [tvm_ffi.Tensor() as heap]:
                return self._heap is not None and heap.data_ptr() == self._heap
        return False

    def _note(self, name: str, arguments: tuple[Any, ...]) -> None:
        assert self.steps is not None
        try:
            self._hold(arguments)
            function = self._library.get_function(name, query_imports=True)
        except (AttributeError, RuntimeError, TypeError):  # not a kernel of this library: it may have a state
            self.steps = None
            return
        plain = all(isinstance(each, tvm_ffi.Tensor | int | float) for each in arguments)
        if not plain or len(self.steps) == _MAX_STEPS or sum(self._held.values()) > _MAX_BYTES:
            self.steps = None
            return
        self.steps.append((function, arguments))
        self.names.append(name)

    def _hold(self, arguments: tuple[Any, ...]) -> None:
        for each in arguments:
            if isinstance(each, tvm_ffi.Tensor):
                start, end = extent(each)
                if not any(first <= start < last for first, last in self._weights):
                    self._held[start] = max(end - start, self._held.get(start, 0))


class Replay:
    """The kernels of a run, with the memory that they work on."""

    def __init__(
        self,
        recorder: Recorder,
        inputs: Sequence[tvm_ffi.Tensor],
        results: Sequence[tvm_ffi.Tensor],
        threads: int,
    ) -> None:
        """The steps of `recorder`, which has some, read `inputs` and write `results`."""
        self.inputs = tuple(numpy_view(tensor) for tensor in inputs)
        self.results = tuple(numpy_view(result) for result in results)
        self.steps, self.names, self.threads = tuple(recorder.steps or ()), recorder.names, threads
        self._tensors, self._allocated = results, recorder.allocated

    def __call__(self, values: Sequence[Array], instrument: Instrument | None = None) -> list[Array]:
        """Return the outputs for inputs of these values, arrays of the caller's. Raise what `run` does."""
        for buffer, value in zip(self.inputs, values):  # noqa: B905  # as many, of the same shapes
            buffer[...] = value
        self.run(instrument)
        return [result.copy() for result in self.results]

    def run(self, instrument: Instrument | None = None) -> None:
        """Call the kernels. Raise ArtifactError where one fails."""
        try:
            call(self.threads, self._run, instrument)
        except FAILURES as error:
            raise ArtifactError(failure(error)) from error

    def _run(self, instrument: Instrument | None) -> None:
        if instrument is None:
            for function, arguments in self.steps:
                function(*arguments)
            return
        for name, (function, arguments) in zip(self.names, self.steps, strict=True):
            instrument(function, name, True, None, *arguments)
            function(*arguments)
            instrument(function, name, False, None, *arguments)

    def write_to(self, index: int, array: Array) -> bool:
        """Have the steps write a result into `array`, which overlaps nothing else; False where they cannot.

        Then it is not aligned, or the result is nothing that the run has allocated, or parts of it are read as another
        tensor.
        """
        result = self._tensors[index]
        start, end = extent(result)
        whole = (result.data_ptr(), tuple(result.shape), str(result.dtype))
        if start not in self._allocated or not is_fit(array) or not array.size:
            return False
        taken = [each for _, arguments in self.steps for each in arguments if isinstance(each, tvm_ffi.Tensor)]
        others = [each for place, each in enumerate(self._tensors) if place != index]
        for tensor in (*taken, *others):
            first, last = extent(tensor)
            same = (tensor.data_ptr(), tuple(tensor.shape), str(tensor.dtype)) == whole
            if first < end and start < last and (not same or any(tensor is other for other in others)):
                return False
        target = wrap_numpy(array, str(result.dtype))
        self.steps = tuple(
            (function, tuple(target if _is_at(each, start) else each for each in arguments))
            for function, arguments in self.steps
        )
        return True


def _is_at(value: Any, start: int) -> bool:
    return isinstance(value, tvm_ffi.Tensor) and value.data_ptr() == start
