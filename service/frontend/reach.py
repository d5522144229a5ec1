"""How far indices reach that sizes compute, as positions are: a range, moved, shifted and laid out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relaxc.service.frontend.onnx.dims import number_of
from relaxc.service.frontend.trend import call_name, call_of, number_in, way

__all__ = ["of_quotient", "of_range", "reach"]

Reach = tuple[Any, Any]
"""The least and the greatest index, both of which occur: ints or TVM expressions."""

_MOVES = frozenset(("reshape", "expand_dims", "squeeze", "flatten", "flip", "permute_dims", "broadcast_to"))
_ROUNDED = frozenset(("floor", "ceil", "round", "trunc"))
"""What leaves whole numbers as they are, and of those nothing else is known here."""
_ROUNDINGS: dict[str, Callable[[float], int]] = {"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc}
_BOUNDS = {"maximum": max, "minimum": min}
_EXACT = frozenset(("int32", "int64", "float32", "float64"))
"""Dtypes that a size fits."""
_DEEPEST = 16
"""Calls that are looked through: more of a sum would take long, as nothing is computed once only."""


def of_range(start: Any, length: Any, step: int) -> Reach:
    """Return the reach of `start + i * step` for `i` below `length`."""
    last = start + (length - 1) * step
    return (start, last) if step > 0 else (last, start)


def reach(value: Any, bound: Callable[[Any], Any], ranges: Mapping[Any, Reach], depth: int = 0) -> Reach | None:
    """Return the least and the greatest of a tensor of whole numbers, None where that is unknown.

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
        is_exact = isinstance(step, int) and str(value.ty.dtype) in _EXACT
        return of_range(start, value.ty.shape.values[0], step) if is_exact else None
    if name == "shape_to_tensor" and len(getattr(value.args[0], "values", ())) == 1:
        return (size := _plain(value.args[0].values[0])), size
    if name == "concat":
        return _of_parts([reach(each, bound, ranges, depth + 1) for each in value.args[0] if not _is_empty(each)])
    if name == "negative" and str(value.ty.dtype) in _EXACT:
        found = reach(value.args[0], bound, ranges, depth + 1)
        return None if found is None else (-found[1], -found[0])
    if name == "abs" and str(value.ty.dtype) in _EXACT:
        return _of_distance(reach(value.args[0], bound, ranges, depth + 1))
    if name in _ROUNDINGS or (name == "astype" and "int" in str(value.attrs.dtype)):
        found = _of_rounded(name, value.args[0], bound, lambda each: reach(each, bound, ranges, depth + 1))
        return found if name in _ROUNDINGS or _is_exact_cast(name, value) else _within(str(value.attrs.dtype), found)
    if name in _BOUNDS:
        return _of_bound(name, *(reach(each, bound, ranges, depth + 1) for each in value.args))
    if name == "clip":
        low, high = ((found := _plain(each), found) for each in value.args[1:])
        return _of_bound("minimum", _of_bound("maximum", reach(value.args[0], bound, ranges, depth + 1), low), high)
    if name == "where":
        return _of_wrapped(value, bound, reach(value.args[2], bound, ranges, depth + 1))
    if name == "floor_divide":
        return of_quotient(*(reach(each, bound, ranges, depth + 1) for each in value.args))
    if name in ("add", "subtract", "multiply") and str(value.ty.dtype) in _EXACT:
        left, right = (reach(each, bound, ranges, depth + 1) for each in value.args)
        if name == "multiply":
            return _of_product(left, right)
        return _of_sum(name, left, right, meets=_apart(value.args) or _meet(name, value.args, bound))
    keeps = name in _MOVES | _ROUNDED or _is_exact_cast(name, value)
    if keeps or (name == "strided_slice" and _is_whole(value, shape)):
        return reach(value.args[0], bound, ranges, depth + 1)
    return None


def _of_sum(name: str, left: Reach | None, right: Reach | None, *, meets: bool) -> Reach | None:
    """Of two tensors whose extremes meet, or of which one is a number."""
    if left is None or right is None or not (_is_one(left) or _is_one(right) or meets):
        return None
    return (left[0] + right[0], left[1] + right[1]) if name == "add" else (left[0] - right[1], left[1] - right[0])


def _meet(name: str, operands: Any, bound: Callable[[Any], Any]) -> bool:
    """Whether both are the same, or vectors of one length that rise together (of a difference, one falls)."""
    if name == "add" and operands[0].same_as(operands[1]):
        return True
    left, right = (way(operand, bound) for operand in operands)
    return left != 0 and left == (right if name == "add" else -right)


def _of_distance(found: Reach | None) -> Reach | None:
    """Of absolute values; of what may have both signs the least is taken for 0."""
    if found is None:
        return None
    low, high = found
    if isinstance(low, int) and low >= 0:
        return found
    if isinstance(high, int) and high <= 0:
        return -high, -low
    return 0, _extreme("maximum", -low, high)


def _of_rounded(
    name: str, value: Any, bound: Callable[[Any], Any], whole: Callable[[Any], Reach | None]
) -> Reach | None:
    """Of what is rounded: whole numbers, else quotients by a number, and what is bounded by fractions."""
    rounded = _ROUNDINGS.get(name, math.trunc)
    if (found := whole(value)) is not None:
        return found
    if (number := number_in(value, bound)) is not None:
        return (rounded(number),) * 2 if math.isfinite(number) else None
    call = call_of(value, bound)
    kind = call_name(call)
    if kind in _BOUNDS:
        return _of_bound(kind, *(_of_rounded(name, each, bound, whole) for each in call.args))
    if kind == "clip":
        low, high = (_of_rounded(name, each, bound, lambda _: None) for each in call.args[1:])
        return _of_bound("minimum", _of_bound("maximum", _of_rounded(name, call.args[0], bound, whole), low), high)
    if kind not in ("divide", "multiply"):
        return None
    found, divisor = whole(call.args[0]), number_in(call.args[1], bound)
    if kind == "multiply" and divisor:
        divisor = 1 / divisor if math.frexp(divisor)[0] == 0.5 else None  # powers of two have exact reciprocals
    if found is None or divisor is None or not divisor.is_integer():
        return None
    by = (int(divisor), int(divisor))
    if rounded is math.ceil:
        up = of_quotient((-found[1], -found[0]), by)
        return None if up is None else (-up[1], -up[0])
    is_natural = isinstance(found[0], int) and found[0] >= 0
    return of_quotient(found, by) if rounded is math.floor or is_natural else None


def _within(dtype: str, found: Reach | None) -> Reach | None:
    """Of integers in a dtype of few bits, where all are known to fit."""
    if found is None:
        return None
    limits, (low, high) = np.iinfo(dtype), (_limit(each, kind) for each, kind in zip(found, _BOUNDS, strict=True))
    return found if low is not None and high is not None and limits.min <= low and high <= limits.max else None


def _limit(number: Any, kind: str) -> int | None:
    """A number that a maximum is no less than, or a minimum no more: one of those that it is of."""
    from tvm import tirx

    if isinstance(number, int):
        return number
    if isinstance(number, tirx.Max if kind == "maximum" else tirx.Min):
        return next((found for each in (number.a, number.b) if (found := _limit(_plain(each), kind)) is not None), None)
    return None


def _of_product(left: Reach | None, right: Reach | None) -> Reach | None:
    """Of a tensor times one number, which stands on the right."""
    if left is None or right is None or not isinstance(right[0], int) or not _is_one(right):
        return None
    low, high = left[0] * right[0], left[1] * right[0]
    return (low, high) if right[0] >= 0 else (high, low)


def _of_parts(parts: Sequence[Reach | None]) -> Reach | None:
    """Of what is joined, where all of it is known."""
    whole = None
    for part in parts:
        if part is None:
            return None
        whole = (
            part if whole is None else (_extreme("minimum", whole[0], part[0]), _extreme("maximum", whole[1], part[1]))
        )
    return whole


def of_quotient(left: Reach | None, right: Reach | None) -> Reach | None:
    """Return the reach of a tensor divided by one positive number, rounded down."""
    if left is None or right is None or not isinstance(right[0], int) or not _is_one(right) or right[0] <= 0:
        return None
    return left[0] // right[0], left[1] // right[0]


def _of_bound(name: str, left: Reach | None, right: Reach | None) -> Reach | None:
    """Of a tensor that one number bounds."""
    if left is None or right is None or not (_is_one(left) or _is_one(right)):
        return None
    return _extreme(name, left[0], right[0]), _extreme(name, left[1], right[1])


def _extreme(name: str, left: Any, right: Any) -> Any:
    from tvm import tirx

    if isinstance(left, int) and isinstance(right, int):
        return _BOUNDS[name](left, right)
    return (tirx.max if name == "maximum" else tirx.min)(left, right)


def _of_wrapped(where: Any, bound: Callable[[Any], Any], found: Reach | None) -> Reach | None:
    """Of `where(x < 0, anything, x)` of an `x` that is never negative; others choose by data."""
    test, kept = call_of(where.args[0], bound), where.args[2]
    if found is None or test is None or not isinstance(found[0], int) or found[0] < 0:
        return None
    if call_name(test) != "less" or not test.args[0].same_as(kept):
        return None
    number = getattr(test.args[1], "value", None)
    return found if number is not None and not number.numpy().any() else None


def _is_empty(value: Any) -> bool:
    """Whether a tensor has no elements, whatever the sizes."""
    return any(number_of(size) == 0 for size in getattr(value.ty.shape, "values", ()))


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
    """A size, or a number of a call, as an int where it is one."""
    value = getattr(size, "value", None)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    number = number_of(size)
    return size if number is None else number


def _of_numbers(array: Any) -> Reach | None:
    """Of whole numbers, which floats may be too."""
    if not array.size or not (array.dtype.kind in "iu" or (array.dtype.kind == "f" and (array % 1 == 0).all())):
        return None
    return int(array.min()), int(array.max())
