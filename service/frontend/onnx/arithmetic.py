"""Arithmetic and comparison of known values: on numbers by numpy, on symbolic sizes element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relaxc.service.frontend.onnx import scope as onnx_scope
from relaxc.service.frontend.onnx.values import Undecided

if TYPE_CHECKING:
    from relaxc.service.frontend.onnx.node import Node

__all__ = ["ARITHMETIC", "COMPARISONS"]


def _divide(left: Any, right: Any, scope: onnx_scope.Scope) -> Any:
    """ONNX divides integers towards zero; sizes are not negative, and then floor is the same and simplifies better."""
    from tvm import tirx

    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            raise Undecided
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    if isinstance(right, int) and right == 1:
        return left
    nonnegative = all(_decide(value >= 0, scope) for value in (left, right) if not isinstance(value, int))
    if nonnegative and all(value >= 0 for value in (left, right) if isinstance(value, int)):
        return left // right
    return tirx.truncdiv(left, right)


def _decide(condition: Any, scope: onnx_scope.Scope) -> bool:
    """Whether a condition holds for all sizes. Raise Undecided when it holds for some."""
    from tvm import tirx

    if isinstance(condition, bool):
        return condition
    if scope.analyzer.can_prove(condition):
        return True
    if scope.analyzer.can_prove(tirx.Not(condition)):
        return False
    raise Undecided


def decided(condition: Any, scope: onnx_scope.Scope) -> Any:
    """Return whether a condition holds for all sizes, or for none; itself where it holds for some."""
    try:
        return _decide(condition, scope)
    except Undecided:
        return condition


def _either(kind: str) -> Callable[[Any, Any, onnx_scope.Scope], Any]:
    """And or Or of two conditions, which one of them may decide."""
    deciding = kind == "Or"

    def join(left: Any, right: Any, scope: onnx_scope.Scope) -> Any:
        from tvm import tirx

        for one, other in ((left, right), (right, left)):
            if isinstance(one, bool):
                return deciding if one is deciding else other
        return getattr(tirx, kind)(left, right)

    return join


def _not(condition: Any, scope: onnx_scope.Scope) -> Any:
    from tvm import tirx

    return not condition if isinstance(condition, bool) else tirx.Not(condition)


def _extreme(kind: str) -> Callable[[Any, Any, onnx_scope.Scope], Any]:
    def pick(left: Any, right: Any, scope: onnx_scope.Scope) -> Any:
        from tvm import tirx

        if isinstance(left, int) and isinstance(right, int):
            return max(left, right) if kind == "max" else min(left, right)
        return getattr(tirx, kind)(left, right)

    return pick


def _compare(kind: str) -> Callable[[Any, Any, onnx_scope.Scope], Any]:
    def decide(left: Any, right: Any, scope: onnx_scope.Scope) -> Any:
        from tvm import tirx

        if isinstance(left, int) and isinstance(right, int):
            return {"EQ": left == right, "LT": left < right, "LE": left <= right}[kind]
        left, right = (tirx.const(v, "int64") if isinstance(v, int) else v for v in (left, right))
        return decided(getattr(tirx, kind)(left, right), scope)

    return decide


def _modulo(left: Any, right: Any, scope: onnx_scope.Scope) -> Any:
    if isinstance(right, int) and right == 0:
        raise Undecided
    return left % right


# Element by element on ints and expressions; `_numeric` does the same on plain numbers.
_SYMBOLIC: dict[str, Callable[[Any, Any, onnx_scope.Scope], Any]] = {
    "Add": lambda a, b, _: a + b,
    "Sub": lambda a, b, _: a - b,
    "Mul": lambda a, b, _: a * b,
    "Div": _divide,
    "Mod": _modulo,
    "Min": _extreme("min"),
    "Max": _extreme("max"),
    "Equal": _compare("EQ"),
    "Less": _compare("LT"),
    "LessOrEqual": _compare("LE"),
    "Greater": lambda a, b, scope: _compare("LT")(b, a, scope),
    "GreaterOrEqual": lambda a, b, scope: _compare("LE")(b, a, scope),
    "And": _either("And"),
    "Or": _either("Or"),
}
_SYMBOLIC_UNARY: dict[str, Callable[[Any, onnx_scope.Scope], Any]] = {
    "Abs": lambda a, scope: _extreme("max")(a, -a, scope),
    "Ceil": lambda a, _: a,
    "Floor": lambda a, _: a,
    "Neg": lambda a, _: -a,
    "Not": _not,
}
_LOGICAL = {"And", "Or", "Not"}
_EXACT = {"Add", "Sub", "Mul", "Min", "Max", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
"""What whole floats give whole numbers, or an answer, by."""
_MOST_CONDITIONS = 8
"""Conditions of sizes that are kept as such: a mask over an axis is left to the run."""
COMPARISONS = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
"""Operators whose results are bools, of sizes conditions."""
_NUMPY = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Min": "minimum",
    "Max": "maximum",
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
    "Not": "logical_not",
    "Neg": "negative",
    "Abs": "abs",
    "Floor": "floor",
    "Ceil": "ceil",
    "Sqrt": "sqrt",
}


def _elementwise(op: str) -> Callable[[Node], Any]:
    def apply(node: Node) -> Any:
        import numpy as np

        arrays = list(node.arrays)
        integral = node.known_dtype(0).startswith(("int", "uint"))
        if op == "Mod" and (not integral or node.attr("fmod", 0)):
            raise Undecided
        if op == "Div" and not integral and any(array.dtype == object for array in arrays):
            raise Undecided
        if any(array.dtype == object for array in arrays):
            if (node.known_dtype(0) == "bool") != (op in _LOGICAL):
                raise Undecided
            return _of_sizes(op, arrays, node.scope)
        if op in ("Div", "Mod") and integral:
            result = functools.reduce(lambda a, b: _by_element(op, a, b, node.scope), arrays)
            # Through Python's integers, which do not wrap: the least number by -1 is past the greatest.
            bits = np.iinfo(arrays[0].dtype).bits
            return np.asarray(result & ((1 << bits) - 1), f"uint{bits}").astype(arrays[0].dtype)
        with np.errstate(all="ignore"):
            function = getattr(np, _NUMPY[op])
            # Max and Min of one input are that input.
            unary = len(arrays) == 1 and op not in _SYMBOLIC
            result = function(arrays[0]) if unary else functools.reduce(function, arrays)
        return result if op in COMPARISONS else np.asarray(result, arrays[0].dtype)

    return apply


def _of_sizes(op: str, arrays: list[Any], scope: onnx_scope.Scope) -> Any:
    if len(arrays) == 1 and op not in ("Min", "Max"):
        return _of_each(op, arrays[0], scope)
    return functools.reduce(lambda a, b: _by_element(op, a, b, scope), arrays)


def _of_each(op: str, array: Any, scope: onnx_scope.Scope) -> Any:
    import numpy as np

    if op not in _SYMBOLIC_UNARY:
        raise Undecided
    result = np.empty(array.shape, object)
    for index in np.ndindex(array.shape):
        result[index] = _SYMBOLIC_UNARY[op](array[index], scope)
    return result


def _by_element(op: str, left: Any, right: Any, scope: onnx_scope.Scope) -> Any:
    import numpy as np

    left, right = np.broadcast_arrays(left.astype(object), right.astype(object))
    if op not in _SYMBOLIC:
        raise Undecided
    result = np.empty(left.shape, object)
    for index in np.ndindex(left.shape):
        a, b = left[index], right[index]
        if isinstance(a, float) or isinstance(b, float):
            # A size times 2.0 is still exact; anything else is left to the run.
            if op not in _EXACT or not all(not isinstance(v, float) or v.is_integer() for v in (a, b)):
                raise Undecided
            a, b = (int(v) if isinstance(v, float) else v for v in (a, b))
        result[index] = _SYMBOLIC[op](a, b, scope)
        if op in COMPARISONS and left.size > _MOST_CONDITIONS and not isinstance(result[index], bool):
            raise Undecided
    decides = op in COMPARISONS and all(isinstance(each, bool) for each in result.reshape(-1))
    return result.astype(bool) if decides else result


def _reduce(op: str) -> Callable[[Node], Any]:
    def apply(node: Node) -> Any:
        import numpy as np

        array, axes = node.arrays[0], node.axes(1)
        if not axes and node.attr("noop_with_empty_axes", 0):
            return array
        if array.dtype == object and array.ndim == 1 and op in ("Mul", "Add") and array.size:
            total = functools.reduce(_SYMBOLIC_REDUCE[op], list(array))
            result = np.empty((1,) if node.attr("keepdims", 1) else (), object)
            result[...] = total
            return result
        if array.dtype == object or array.size == 0:
            raise Undecided
        axes = axes or tuple(range(array.ndim))
        functions: dict[str, Any] = {"Mul": np.prod, "Add": np.sum, "Max": np.max, "Min": np.min}
        result = functions[op](array, axis=tuple(axes), keepdims=bool(node.attr("keepdims", 1)))
        return np.asarray(result).astype(array.dtype)

    return apply


_SYMBOLIC_REDUCE: dict[str, Callable[[Any, Any], Any]] = {"Mul": lambda a, b: a * b, "Add": lambda a, b: a + b}

ARITHMETIC: dict[str, Callable[[Node], Any]] = {
    **{op: _elementwise(op) for op in (*_NUMPY, "Mod")},
    "ReduceProd": _reduce("Mul"),
    "ReduceSum": _reduce("Add"),
    "ReduceMax": _reduce("Max"),
    "ReduceMin": _reduce("Min"),
}
"""Operator → its result on `node.arrays`; raises Undecided where the sizes do not decide it."""
