"""Calls on constants are computed at compile time, where the result is not much larger than what it came from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.constants import Array, array_of, constant, numpy_dtype
from relaxc.service.passes.common.rewrite import Scope, is_tensor_constant, rewrite_calls, static_shape

__all__ = ["SMALL_BYTES", "FoldConstants"]

SMALL_BYTES = 1 << 20
"""A result up to this size is always folded; a larger one only if it is no larger than its operands together.

A cast may double the size.
"""


@tvm.transform.module_pass(opt_level=0, name="FoldConstants")
class FoldConstants:
    """`permute_dims(const) → const`, and so on for every operator of the table below.

    In numpy, which takes milliseconds where TVM's own FoldConstant compiles and runs one unscheduled
    PrimFunc a call; its results equal TVM's (tests compare them, operator by operator). Bounded, so
    that `full((4096, 4096), 0)` or a widened embedding table does not become a weight.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with foldable calls replaced by constants."""
        return rewrite_calls(module, {name: _folder(compute) for name, compute in COMPUTE.items()})


Compute = Callable[[relax.Call, list[Array]], Array | None]


def _folder(compute: Compute) -> Callable[[relax.Call, Scope], relax.Expr | None]:
    def rule(call: relax.Call, scope: Scope) -> relax.Expr | None:
        shape = static_shape(call) if isinstance(call.ty, relax.TensorType) else None
        operands = _operands(call, scope)
        if shape is None or operands is None or 0 in shape:  # TVM writes no constant of no elements that it reads again
            return None
        dtype = numpy_dtype(str(call.ty.dtype))
        if math.prod(shape) * dtype.itemsize > max(SMALL_BYTES, _allowed_bytes(call, operands)):
            return None
        with np.errstate(all="ignore"):  # inf and NaN are results like others
            result = compute(call, operands)
        return None if result is None else constant(np.broadcast_to(result, shape), str(call.ty.dtype))

    return rule


def _allowed_bytes(call: relax.Call, operands: list[Array]) -> int:
    """As large as the operands; more for a cast, so that 16-bit and quantized weights may become fp32 ones."""
    return sum(array.nbytes for array in operands) * {"relax.astype": 2, "relax.dequantize": 4}.get(call.op.name, 1)


def _operands(call: relax.Call, scope: Scope) -> list[Array] | None:
    """The constant tensors among the arguments, tuples flattened, or None if a tensor is not constant."""
    found: list[Array] = []
    for arg in call.args:
        whole = scope.value(arg) if isinstance(arg.ty, relax.TupleType) else arg
        for field in whole.fields if isinstance(whole, relax.Tuple) else [whole]:
            if isinstance(field.ty, relax.TupleType):
                return None
            if not isinstance(field.ty, relax.TensorType):
                continue
            value = scope.value(field)
            if not is_tensor_constant(value):
                return None
            found.append(array_of(value))
    return found


def _ints(expr: relax.Expr) -> list[int] | None:
    """The integers of a literal tuple or shape, or None where one is symbolic."""
    values = list(expr.fields) if isinstance(expr, relax.Tuple) else list(getattr(expr, "values", ()))
    return [int(value) for value in values] if all(hasattr(value, "value") for value in values) else None


def _strided_slice(call: relax.Call, operands: list[Array]) -> Array | None:
    parts = [_ints(arg) for arg in call.args[1:]]
    if any(part is None for part in parts) or not parts[0]:
        return None
    axes, begin, end = parts[0], parts[1] or [], parts[2] or []
    steps = (parts[3] if len(parts) > 3 else None) or [1] * len(axes)
    where = [slice(None)] * operands[0].ndim
    if any(step <= 0 for step in steps):
        return None
    for axis, low, high, step in zip(axes, begin, end, steps, strict=True):
        where[axis] = slice(low, high, step)
    return operands[0][tuple(where)]


def _take(call: relax.Call, operands: list[Array]) -> Array | None:
    data, indices = operands
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    size = data.size if axis is None else data.shape[axis]
    lowest = 0 if call.attrs.mode == "clip" else -size
    if indices.size and not (lowest <= indices.min() and indices.max() < size):
        return None  # left for run time, which clips
    taken: Array = np.take(data, indices, axis=axis)
    return taken


def _gather_elements(call: relax.Call, operands: list[Array]) -> Array | None:
    data, indices = operands
    axis = int(call.attrs.axis) % data.ndim
    if indices.size and not (indices.min() >= 0 and indices.max() < data.shape[axis]):
        return None
    part = data[tuple(slice(None if at == axis else size) for at, size in enumerate(indices.shape))]
    gathered: Array = np.take_along_axis(part, indices, axis)
    return gathered


def _arange(call: relax.Call, _: list[Array]) -> Array | None:
    start, stop, step = (getattr(arg, "value", None) for arg in call.args)
    if start is None or stop is None or step is None:
        return None
    count = static_shape(call)
    values: Array = start + step * np.arange(
        count[0] if count else 0, dtype="float64" if isinstance(step, float) else "int64"
    )
    return values


def _cumsum(call: relax.Call, operands: list[Array]) -> Array | None:
    """Sums of integers only: those of floats depend on the order."""
    dtype = numpy_dtype(str(call.ty.dtype))
    if operands[0].dtype.kind not in "iu" or dtype.kind not in "iu" or call.attrs.axis is None:
        return None
    sums: Array = np.cumsum(operands[0], axis=int(call.attrs.axis), dtype=dtype)
    return sums - operands[0].astype(dtype) if call.attrs.exclusive else sums


def _shape_to_tensor(call: relax.Call, _: list[Array]) -> Array | None:
    sizes = _ints(call.args[0]) if isinstance(call.args[0], relax.ShapeExpr) else None
    return None if sizes is None else np.array(sizes, dtype="int64")


def _clip(call: relax.Call, operands: list[Array]) -> Array | None:
    low, high = (getattr(arg, "value", None) for arg in call.args[1:3])
    if operands[0].dtype.kind != "f" or low is None or high is None:
        return None
    return np.clip(operands[0], operands[0].dtype.type(low), operands[0].dtype.type(high))


def _same(function: Callable[..., Any], kinds: str = "fVbiu") -> Compute:
    """An elementwise function of arrays of these numpy kinds (bfloat16 is a V), the dtype kept by numpy's rules."""

    def compute(call: relax.Call, operands: list[Array]) -> Array | None:
        if len(operands) != len(call.args) or any(array.dtype.kind not in kinds for array in operands):
            return None
        result: Array = function(*operands)
        return result

    return compute


def _whole(function: Callable[..., Any]) -> Compute:
    """Integer division, where all operands are positive and every convention of rounding agrees."""

    def compute(_: relax.Call, operands: list[Array]) -> Array | None:
        if len(operands) != 2 or any(array.dtype.kind not in "iu" for array in operands):
            return None
        if (operands[0] < 0).any() or (operands[1] <= 0).any():
            return None
        result: Array = function(*operands)
        return result

    return compute


def _astype(call: relax.Call, operands: list[Array]) -> Array | None:
    wanted = numpy_dtype(str(call.ty.dtype))
    if operands[0].dtype.kind in "fV" and wanted.kind in "iu":
        return None  # C's conversion of a NaN or of a value outside the range is the machine's affair
    return operands[0].astype(wanted)


def _dequantize(call: relax.Call, operands: list[Array]) -> Array:
    data, scale, zero = operands
    along = [1] * data.ndim
    if data.ndim:
        along[int(call.attrs.axis)] = -1
    scale, zero = (x.reshape(()) if x.size == 1 else x.reshape(along) for x in (scale, zero))
    steps = data if data.dtype == numpy_dtype("float8_e4m3fn") else data.astype(np.int32) - zero.astype(np.int32)
    result: Array = steps.astype(np.float32) * scale.astype(np.float32)
    return result.astype(numpy_dtype(str(call.ty.dtype)))


COMPUTE: Mapping[str, Compute] = {
    # Movement of data
    "permute_dims": lambda call, x: np.transpose(x[0], [int(a) for a in call.attrs.axes] if call.attrs.axes else None),
    "reshape": lambda call, x: x[0].reshape(static_shape(call)),
    "flatten": lambda call, x: x[0].reshape(static_shape(call)),
    "expand_dims": lambda call, x: x[0].reshape(static_shape(call)),
    "squeeze": lambda call, x: x[0].reshape(static_shape(call)),
    "broadcast_to": lambda call, x: x[0],
    "concat": lambda call, x: np.concatenate(x, axis=int(call.attrs.axis)) if x else None,
    "stack": lambda call, x: np.stack(x, axis=int(call.attrs.axis)),
    "strided_slice": _strided_slice,
    "take": _take,
    "gather_elements": _gather_elements,
    "where": lambda call, x: np.where(*x),
    "astype": _astype,
    "dequantize": _dequantize,
    "cumsum": _cumsum,
    # Creation
    "arange": _arange,
    "full": lambda call, x: x[0],
    "full_like": lambda call, x: x[1],
    "zeros": lambda call, x: np.zeros(()),
    "zeros_like": lambda call, x: np.zeros(()),
    "ones": lambda call, x: np.ones(()),
    "ones_like": lambda call, x: np.ones(()),
    "shape_to_tensor": _shape_to_tensor,
    # Arithmetic; powers are left to run time
    "add": _same(np.add, "fViu"),
    "subtract": _same(np.subtract, "fViu"),
    "multiply": _same(np.multiply, "fViu"),
    "divide": _same(np.divide, "fV"),
    "maximum": _same(np.maximum, "fiu"),
    "minimum": _same(np.minimum, "fiu"),
    "negative": _same(np.negative, "fVi"),
    "mod": _whole(np.mod),
    "floor_mod": _whole(np.mod),
    "floor_divide": _whole(np.floor_divide),
    "sqrt": _same(np.sqrt, "f"),
    "clip": _clip,
    # Comparison and logic
    "equal": _same(np.equal),
    "not_equal": _same(np.not_equal),
    "less": _same(np.less),
    "less_equal": _same(np.less_equal),
    "greater": _same(np.greater),
    "greater_equal": _same(np.greater_equal),
    "logical_and": _same(np.logical_and, "b"),
    "logical_or": _same(np.logical_or, "b"),
    "logical_xor": _same(np.logical_xor, "b"),
    "logical_not": _same(np.logical_not, "b"),
    "bitwise_and": _same(np.bitwise_and, "biu"),
    "bitwise_or": _same(np.bitwise_or, "biu"),
    "bitwise_xor": _same(np.bitwise_xor, "biu"),
    "isnan": _same(np.isnan, "f"),
}
