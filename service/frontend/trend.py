"""Whether a vector of positions rises or falls, and the calls and numbers that it is computed by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaxc.service.frontend.onnx.dims import number_of

__all__ = ["call_name", "call_of", "number_in", "way"]

Bound = Callable[[Any], Any]
"""What a variable is bound to."""

_DEEPEST = 16
"""Calls that are looked through."""
_KEEP = frozenset(("floor", "ceil", "round", "trunc", "astype", "maximum", "minimum", "clip"))
"""What never turns around what rises, by one number beside it if any."""


def call_of(value: Any, bound: Bound) -> Any:
    """Return the call of an operator that a tensor is bound to, or None."""
    from tvm import relax

    while isinstance(value, relax.Var):
        value = bound(value)
    return value if isinstance(value, relax.Call) and hasattr(value.op, "name") else None


def call_name(call: Any) -> str:
    """Return the operator's name without its dialect; of None, nothing."""
    return "" if call is None else str(call.op.name).removeprefix("relax.")


def number_in(value: Any, bound: Bound) -> float | None:
    """Return the number that a constant of one element, or an argument, is."""
    from tvm import ir, relax

    while isinstance(value, relax.Var):
        value = bound(value)
    if isinstance(value, ir.GenericConst):
        array = value.value.numpy()
        return float(array.reshape(-1)[0]) if array.size == 1 else None
    if isinstance(value, relax.Call) and call_name(value) == "astype":
        return number_in(value.args[0], bound)
    number = getattr(value, "value", None)
    return float(number) if isinstance(number, int | float) else None


def way(value: Any, bound: Bound, depth: int = 0) -> int:
    """Return 1 where a vector never falls, -1 where it never rises, 0 where neither is known."""
    call = call_of(value, bound)
    if call is None or call.ty.ndim != 1 or depth == _DEEPEST:
        return 0
    name, args = call_name(call), list(call.args)
    if name == "arange":
        step = number_of(args[2])
        return 0 if step is None else (step > 0) - (step < 0)
    if name in _KEEP:
        others = [each for each in args[1:] if not _is_single(each)]
        return way(args[0], bound, depth + 1) if not others else 0
    if name == "negative":
        return -way(args[0], bound, depth + 1)
    if name in ("add", "subtract"):
        ways = [None if _is_single(each) else way(each, bound, depth + 1) for each in args]
        if name == "subtract" and ways[1] is not None:
            ways[1] = -ways[1]
        known = {each for each in ways if each is not None}
        return known.pop() if len(known) == 1 else 0
    if name in ("floor_divide", "divide", "multiply"):
        factor = number_in(args[1], bound)
        return 0 if factor is None else way(args[0], bound, depth + 1) * ((factor > 0) - (factor < 0))
    return 0


def _is_single(value: Any) -> bool:
    """Whether it is one number, which moves all of a vector alike."""
    shape = getattr(getattr(value, "ty", None), "shape", None)
    return shape is None or all(number_of(size) == 1 for size in getattr(shape, "values", (None,)))
