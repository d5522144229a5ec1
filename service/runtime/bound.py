"""Calls whose inputs and outputs stay where they are: bound once, checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from service.errors import InputName, InputShape, InputType
from service.runtime.arguments import by_name
from service.runtime.replay import Replay
from service.runtime.tensors import Array, Copies, aligned_copy, numpy_dtype, numpy_view, on_host
from service.runtime.tvm_runtime import CPU, copied_to
from service.signature import TensorSpec

if TYPE_CHECKING:
    from service.runtime.session import Session

__all__ = ["Bound", "bound"]


class Bound:
    """A call of a session with fixed buffers: reads `inputs` as they are when it is called, overwrites `outputs`.

    Safe from several threads as the session's calls are; those who share one also share its buffers.
    """

    def __init__(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], run: Callable[[], None]) -> None:
        """`run` does all but return the outputs."""
        self.inputs, self.outputs = dict(inputs), dict(outputs)
        self._run = run

    def __call__(self) -> dict[str, Any]:
        """Run, and return `outputs`. Raise ArtifactError where the program itself fails."""
        self._run()
        return self.outputs


def bound(session: Session, inputs: Mapping[str, Any], given: Mapping[str, Any]) -> Bound:
    """See `Session.bind`, which holds the session's lock."""
    copies: Copies = {}
    tensors = session._tensors((), inputs, copies)
    results = session._results(session._placed(tensors), None)
    outputs, arrays = _outputs(session.signature.outputs, [tuple(result.shape) for result in results], given)
    values = by_name(session.signature, (), inputs)
    sources = [values[spec.name] for spec in session.signature.inputs]
    copied = [spec.name in copies for spec in session.signature.inputs]
    tensors, pairs = _apart(tensors, sources, copied, arrays)
    replay = session._recorded(tensors)
    run = _called(session, tensors, arrays) if replay is None else _replayed(replay, arrays)

    def whole() -> None:
        with session._lock:
            for target, source in pairs:
                target[...] = source
            run()

    return Bound(values, outputs, whole)


def _called(session: Session, tensors: list[tvm_ffi.Tensor], arrays: list[Array]) -> Callable[[], None]:
    def run() -> None:
        for array, result in zip(arrays, session._results(session._placed(tensors), None), strict=True):
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
) -> tuple[list[tvm_ffi.Tensor], list[tuple[Array, Array]]]:
    """The tensors to run on, copies in place of those that overlap an output, and what each call copies from where."""
    found, pairs = [], []
    for tensor, value, is_copy in zip(tensors, values, copied, strict=True):
        source = value
        if not isinstance(value, np.ndarray | np.generic):
            source = tvm_ffi.from_dlpack(value) if not isinstance(value, tvm_ffi.Tensor) else value
            source = numpy_view(source) if on_host(source) else source
        overlaps = on_host(tensor) and any(np.may_share_memory(numpy_view(tensor), array) for array in outputs)
        if overlaps and not is_copy:
            tensor = copied_to(tensor, CPU)
        if overlaps or is_copy:
            pairs.append((numpy_view(tensor), source))
        found.append(tensor)
    return found, pairs


def _outputs(
    specs: Sequence[TensorSpec], shapes: Sequence[tuple[int, ...]], given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Array]]:
    """Return the caller's outputs by name, with new arrays for those that are not given, and arrays of their memory.

    Raise InputName, InputType or InputShape where one does not fit, is read-only, or overlaps another.
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
        if any(np.may_share_memory(array, other) for other in arrays):
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
    try:  # numpy knows by DLPack what is read-only; it has no bfloat16
        if not isinstance(value, tvm_ffi.Tensor) and spec.dtype != "bfloat16":
            return np.from_dlpack(value)
        tensor = value if isinstance(value, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputType(f"output {spec.name!r} cannot be written through DLPack: {error}", name=spec.name) from error
    if not on_host(tensor):
        raise InputType(f"output {spec.name!r} is on {tensor.device}, it must be on the CPU", name=spec.name)
    if str(tensor.dtype) != spec.dtype:
        raise InputType(f"output {spec.name!r} is {tensor.dtype}, it must be {spec.dtype}", name=spec.name)
    return numpy_view(tensor)
