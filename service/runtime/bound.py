"""Calls whose inputs and outputs stay where they are: bound once, checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from relaxc.service.errors import InputName, InputShape, InputType
from relaxc.service.runtime.arguments import by_name
from relaxc.service.runtime.program import Program
from relaxc.service.runtime.replay import Replay
from relaxc.service.runtime.tensors import Array, Copies, aligned_copy, is_negated, numpy_dtype, numpy_view, on_host
from relaxc.service.runtime.tvm_runtime import CPU, copied_to
from relaxc.service.signature import TensorSpec

if TYPE_CHECKING:
    from relaxc.service.runtime.session import Session

__all__ = ["Bound", "bound"]

_MAX_WORK: Any = 10_000  # numpy's stubs know 0 and -1 alone
"""Of numpy's search for a shared element, which is exponential in the axes; those of real arrays take a few steps."""


class Bound:
    """A call of a session with fixed buffers: reads `inputs` as they are when it is called, overwrites `outputs`.

    Safe from several threads as the session's calls are; those who share one also share its buffers.
    """

    def __init__(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], run: Callable[[], None]) -> None:
        """`run` does all but return the outputs."""
        self.inputs, self.outputs = dict(inputs), dict(outputs)
        self._run = run

    def __call__(self) -> dict[str, Any]:
        """Run, and return `outputs`.

        Raise ArtifactError where the program itself fails, and InputShape where values give an output another shape
        than they did when it was bound; nothing is written then.
        """
        self._run()
        return self.outputs


def bound(session: Session, program: Program, inputs: Mapping[str, Any], given: Mapping[str, Any]) -> Bound:
    """See `Session.bind`, which has taken the program."""
    copies: Copies = {}
    tensors = session._tensors((), inputs, copies)
    placed = session._placed(tensors)
    if session.state is None:
        results = program.results(placed, None)
    else:  # to learn the shapes is no step
        results = program.stepped(placed, None, session.state.copy())
    outputs, arrays = _outputs(session.signature.outputs, [tuple(result.shape) for result in results], given)
    values = by_name(session.signature, (), inputs)
    sources = [values[spec.name] for spec in session.signature.inputs]
    copied = [spec.name in copies for spec in session.signature.inputs]
    tensors, fills = _apart(tensors, sources, copied, arrays)
    replay = program.recorded(tensors)
    run = _called(session, program, tensors, arrays) if replay is None else _replayed(replay, arrays)

    programs = session._programs

    def whole() -> None:
        with program.lock:
            for fill in fills:
                fill()
            run()
        if programs.waiting:
            programs.tell()

    return Bound(values, outputs, whole)


def _called(
    session: Session, program: Program, tensors: list[tvm_ffi.Tensor], arrays: list[Array]
) -> Callable[[], None]:
    state = session.state

    def run() -> None:
        if state is None:
            write(program.results(session._placed(tensors), None))
            return
        with state.lock:
            write(program.stepped(session._placed(tensors), None, state))

    def write(results: list[tvm_ffi.Tensor]) -> None:
        for spec, array, result in zip(session.signature.outputs, arrays, results, strict=True):
            if array.shape != tuple(result.shape):  # numpy would repeat a smaller one over the array
                found, bound = list(result.shape), list(array.shape)
                told = f"output {spec.name!r} has the shape {found} now, as values decide; the bound one has {bound}"
                raise InputShape(told, name=spec.name)
        for array, result in zip(arrays, results, strict=True):
            array[...] = numpy_view(result if on_host(result) else copied_to(result, CPU))

    return run


def _replayed(replay: Replay, arrays: list[Array]) -> Callable[[], None]:
    written = [replay.write_to(index, array) for index, array in enumerate(arrays)]
    rest = [(array, result) for array, result, done in zip(arrays, replay.results, written, strict=True) if not done]
    if not rest:
        return replay.run

    def run() -> None:
        replay.run()
        for array, result in rest:
            array[...] = result

    return run


def _apart(
    tensors: Sequence[tvm_ffi.Tensor], values: Sequence[Any], copied: Sequence[bool], outputs: Sequence[Array]
) -> tuple[list[tvm_ffi.Tensor], list[Callable[[], Any]]]:
    """The tensors to run on, copies in place of those that overlap an output, and what each call does to fill these."""
    found: list[tvm_ffi.Tensor] = []
    fills: list[Callable[[], Any]] = []
    for tensor, value, is_copy in zip(tensors, values, copied, strict=True):
        source = value
        if not isinstance(value, np.ndarray | np.generic):
            source = tvm_ffi.from_dlpack(value) if not isinstance(value, tvm_ffi.Tensor) else value
            source = numpy_view(source) if on_host(source) else source
        overlaps = on_host(tensor) and any(_share(numpy_view(tensor), array) for array in outputs)
        if is_negated(value):  # the tensor is a copy that torch has made
            fills.append(partial(np.negative, source, numpy_view(tensor)))
        elif overlaps or is_copy:
            tensor = tensor if is_copy else copied_to(tensor, CPU)
            fills.append(partial(np.copyto, numpy_view(tensor), source))
        found.append(tensor)
    return found, fills


def _share(one: Array, other: Array) -> bool:
    """Whether they share an element, as far as that can be told in short; halves of one array do not."""
    try:
        return np.shares_memory(one, other, max_work=_MAX_WORK)
    except np.exceptions.TooHardError:
        return True


def _meets_itself(array: Array) -> bool:
    """Whether several elements may be in one place: an axis steps by less than all within a step take."""
    end = array.itemsize
    for step, size in sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True)):
        if size > 1 and step < end:
            return array.size > 0
        end += step * (size - 1)
    return False


def _outputs(
    specs: Sequence[TensorSpec], shapes: Sequence[tuple[int, ...]], given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Array]]:
    """Return the caller's outputs by name, with new arrays for those that are not given, and arrays of their memory.

    Raise InputName, InputType or InputShape where one does not fit, is read-only, or overlaps another or itself.
    """
    names = [spec.name for spec in specs]
    for name in given:
        if name not in names:
            raise InputName(f"there is no output {name!r}; there are {', '.join(names)}", name=name)
    outputs: dict[str, Any] = {}
    arrays: list[Array] = []
    for spec, shape in zip(specs, shapes, strict=True):
        dtype = numpy_dtype(spec.dtype)
        if spec.name in given:
            value, array = given[spec.name], _array(spec, given[spec.name])
        else:
            value = array = numpy_view(aligned_copy(np.zeros(shape, dtype), spec.dtype, shape))
        if array.dtype != dtype:
            raise InputType(f"output {spec.name!r} is {array.dtype}, it must be {spec.dtype}", name=spec.name)
        if array.shape != shape:
            found, wanted = list(array.shape), list(shape)
            raise InputShape(f"output {spec.name!r} has the shape {found}, it must have {wanted}", name=spec.name)
        if not array.flags.writeable:
            raise InputType(f"output {spec.name!r} is read-only", name=spec.name)
        if _meets_itself(array):
            raise InputType(f"output {spec.name!r} has several elements in one place, by its strides", name=spec.name)
        if any(_share(array, other) for other in arrays):
            raise InputType(f"output {spec.name!r} overlaps another one", name=spec.name)
        outputs[spec.name] = value
        arrays.append(array)
    return outputs, arrays


def _array(spec: TensorSpec, value: Any) -> Array:
    """The memory of an output: of a numpy array, or of a tensor on the host that speaks DLPack."""
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        kind = type(value).__name__
        raise InputType(
            f"output {spec.name!r} is a {kind}; it takes numpy arrays and tensors that speak DLPack", name=spec.name
        )
    if is_negated(value):
        raise InputType(f"output {spec.name!r} is a view that torch negates when it is read", name=spec.name)
    try:  # numpy knows by DLPack what is read-only; it has no bfloat16
        if not isinstance(value, tvm_ffi.Tensor) and spec.dtype != "bfloat16":
            return np.from_dlpack(value)
        tensor = value if isinstance(value, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(value)
        found = str(tensor.dtype)  # raises for complex numbers
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputType(f"output {spec.name!r} cannot be written through DLPack: {error}", name=spec.name) from error
    if not on_host(tensor):
        raise InputType(f"output {spec.name!r} is on {tensor.device}, it must be on the CPU", name=spec.name)
    if found != spec.dtype:
        raise InputType(f"output {spec.name!r} is {found}, it must be {spec.dtype}", name=spec.name)
    return numpy_view(tensor)
