"""How far indices reach that sizes compute, as positions are: a range, moved, shifted and laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from service.frontend.onnx.dims import number_of

__all__ = ["of_range", "reach"]

Reach = tuple[Any, Any]
"""The least and the greatest index, both of which occur: ints or TVM expressions."""

_MOVES = frozenset(("reshape", "expand_dims", "squeeze", "flatten", "flip", "permute_dims", "broadcast_to"))
_EXACT = frozenset(("int32", "int64", "float32", "float64"))
"""Dtypes that a size fits."""
_DEEPEST = 16
"""Calls that are looked through: more of a sum would take long, as nothing is computed once only."""


def of_range(start: Any, length: Any, step: int) -> Reach:
    """Return the reach of `start + i * step` for `i` below `length`."""
    last = start + (length - 1) * step
    return (start, last) if step > 0 else (last, start)


def reach(value: Any, bound: Callable[[Any], Any], ranges: Mapping[Any, Reach], depth: int = 0) -> Reach | None:
    """Return the least and the greatest of an integer tensor, None where that is unknown.

    `bound` gives what a variable is bound to, `ranges` has variables that are ranges.
    """
    from tvm import ir, relax

    shape: Any = None
    while isinstance(value, relax.Var):
        if value in ranges:
            return ranges[value]
        shape, value = shape or value.ty.shape, bound(value)
    if isinstance(value, ir.GenericConst):
        return _of_numbers(value.value.numpy())
    if not isinstance(value, relax.Call) or not hasattr(value.op, "name") or depth == _DEEPEST:
        return None
    name = value.op.name.removeprefix("relax.")
    if name == "arange":
        start, _, step = map(_plain, value.args)
        return of_range(start, value.ty.shape.values[0], step) if isinstance(step, int) else None
    if name == "shape_to_tensor" and len(getattr(value.args[0], "values", ())) == 1:
        return (size := _plain(value.args[0].values[0])), size
    if name in ("add", "subtract", "multiply") and str(value.ty.dtype) in _EXACT:
        left, right = (reach(each, bound, ranges, depth + 1) for each in value.args)
        return _of_product(left, right) if name == "multiply" else _of_sum(name, value.args, left, right)
    if name in _MOVES or _is_exact_cast(name, value) or (name == "strided_slice" and _is_whole(value, shape)):
        return reach(value.args[0], bound, ranges, depth + 1)
    return None


def _of_sum(name: str, operands: Any, left: Reach | None, right: Reach | None) -> Reach | None:
    if left is None or right is None or not (_is_one(left) or _is_one(right) or _apart(operands)):
        return None
    return (left[0] + right[0], left[1] + right[1]) if name == "add" else (left[0] - right[1], left[1] - right[0])


def _of_product(left: Reach | None, right: Reach | None) -> Reach | None:
    """Of a tensor times one number, which stands on the right."""
    if left is None or right is None or not isinstance(right[0], int) or not _is_one(right):
        return None
    low, high = left[0] * right[0], left[1] * right[0]
    return (low, high) if right[0] >= 0 else (high, low)


def _is_one(found: Reach) -> bool:
    low, high = found
    return low is high or (isinstance(low, int) and isinstance(high, int) and low == high)


def _apart(operands: Any) -> bool:
    """Whether no axis is of both operands, such that the extremes of both meet."""
    shapes = [list(operand.ty.shape.values)[::-1] for operand in operands]
    return all(any(number_of(size) == 1 for size in sizes) for sizes in zip(*shapes, strict=False))


def _is_exact_cast(name: str, call: Any) -> bool:
    return name == "astype" and str(call.attrs.dtype) in _EXACT


def _is_whole(call: Any, shape: Any) -> bool:
    """Whether a slice, of that shape, leaves nothing out and turns nothing around."""
    steps = [number_of(step) for step in call.args[4].fields] if len(call.args) > 4 else []
    return str(shape) == str(call.args[0].ty.shape) and all(step == 1 for step in steps)


def _plain(size: Any) -> Any:
    number = number_of(size)
    return size if number is None else number


def _of_numbers(array: Any) -> Reach | None:
    return (int(array.min()), int(array.max())) if array.dtype.kind in "iu" and array.size else None
