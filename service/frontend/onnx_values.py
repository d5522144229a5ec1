"""Values known before the run: small constants and shapes, with symbolic sizes in them, computed while importing.

A graph computes its shapes with nodes (Shape → Gather → Concat → Reshape). Here these are evaluated on arrays whose
elements are numbers or TVM expressions, so that Reshape sees `[batch, 12, seq, 64]` and nothing of it is left to run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.frontend import onnx_dims

if TYPE_CHECKING:
    from service.frontend.onnx_node import Node

__all__ = ["FOLDS", "Known", "Undecided", "known_ints"]

# Larger results are left to the constant folding pass, which compiles what it folds.
MAX_FOLDED = 4096


class Undecided(Exception):
    """A comparison of symbolic sizes that holds for some sizes only."""


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor known at import: an array of numbers, or for integers an object array of ints and TVM expressions."""

    array: Any
    dtype: str

    @property
    def symbolic(self) -> bool:
        """Whether some element is an expression over symbolic sizes."""
        return bool(self.array.dtype == object)


def known_ints(
    values: list[Any], scope: onnx_dims.Scope, dtype: str = "int64", shape: tuple[int, ...] | None = None
) -> Known:
    """Sizes as a Known of rank one or of `shape`: numbers where all are numbers."""
    import numpy as np

    simple = [onnx_dims.simplify(value, scope) for value in values]
    shape = (len(simple),) if shape is None else shape
    if all(isinstance(value, int) for value in simple):
        return Known(np.array(simple, dtype).reshape(shape), dtype)
    array = np.empty(len(simple), object)
    for place, value in enumerate(simple):
        array[place] = value
    return Known(array.reshape(shape), dtype)


def _static(array: Any) -> list[int]:
    """The numbers in an array. Raises Undecided when one is symbolic."""
    values = array.reshape(-1).tolist()
    if not all(isinstance(value, int) for value in values):
        raise Undecided
    return values  # type: ignore[no-any-return]


def _axes(node: Node, rank: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    axes = node.axes(1)
    return tuple(axis % rank for axis in axes) if axes is not None else (default or ())


def _squeeze(node: Node) -> Any:
    array = node.arrays[0]
    axes = node.axes(1)
    return array.squeeze() if axes is None else array.squeeze(tuple(axes))


def _unsqueeze(node: Node) -> Any:
    import numpy as np

    return np.expand_dims(node.arrays[0], tuple(node.axes(1) or ()))


def _reshape(node: Node) -> Any:
    array = node.arrays[0]
    target = _static(node.arrays[1])
    if not node.attr("allowzero", 0):
        target = [array.shape[axis] if dim == 0 else dim for axis, dim in enumerate(target)]
    return array.reshape(target)


def _slice(node: Node) -> Any:
    array = node.arrays[0]
    starts, ends, axes, steps = node.slice_arguments()
    index = [slice(None)] * array.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not all(isinstance(value, int) for value in (start, end, step)):
            raise Undecided
        # An end far below zero means 'past the first element' when walking backwards.
        stop = None if step < 0 and end < -array.shape[axis] else end
        index[axis] = slice(start, stop, step)
    return array[tuple(index)]


def _concat(node: Node) -> Any:
    import numpy as np

    return np.concatenate([array for array in node.arrays if array is not None], node.attr("axis", 1))


def _gather(node: Node) -> Any:
    import numpy as np

    return np.take(
        node.arrays[0], np.array(_static(node.arrays[1]), "int64").reshape(node.arrays[1].shape), node.attr("axis", 0)
    )


def _expand(node: Node) -> Any:
    import numpy as np

    array = node.arrays[0]
    shape = np.broadcast_shapes(array.shape, tuple(_static(node.arrays[1])))
    _bound(shape)
    return np.broadcast_to(array, shape)


def _bound(shape: Any) -> None:
    if functools.reduce(lambda a, b: a * b, shape, 1) > MAX_FOLDED:
        raise Undecided


def _constant_of_shape(node: Node) -> Any:
    import numpy as np

    shape = tuple(_static(node.arrays[0]))
    _bound(shape)
    value = node.attr("value", np.zeros(1, "float32"))
    return np.full(shape, value.reshape(-1)[0], value.dtype)


def _range(node: Node) -> Any:
    import numpy as np

    if any(array.dtype == object for array in node.arrays):
        raise Undecided
    start, limit, delta = (array.reshape(()) for array in node.arrays[:3])
    if delta == 0:
        raise Undecided
    count = int(max(np.ceil((limit.astype("float64") - start) / delta), 0))
    _bound((count,))
    return (np.arange(count) * delta + start).astype(start.dtype)


def _cast(node: Node) -> Any:
    dtype = node.attr_dtype("to")
    array = node.arrays[0]
    if array.dtype == object:
        # Sizes stay exact in these; a float of a size may only become an int again.
        if dtype not in ("int64", "int32", "float32", "float64"):
            raise Undecided
        return array
    if array.dtype.kind == "f" and dtype.startswith(("int", "uint", "bool", "float8")):
        import numpy as np

        if not np.isfinite(array).all():
            raise Undecided
    return array.astype(node.numpy_dtype(dtype))


def _where(node: Node) -> Any:
    import numpy as np

    condition, left, right = node.arrays[:3]
    if condition.dtype == object:
        raise Undecided
    if left.dtype != right.dtype:
        left, right = left.astype(object), right.astype(object)
    return np.where(condition, left, right)


def _split(node: Node) -> Any:
    import numpy as np

    array = node.arrays[0]
    axis = node.attr("axis", 0)
    sizes = node.split_sizes(array.shape[axis])
    return np.split(array, np.cumsum(sizes[:-1]), axis)


def _divide(left: Any, right: Any, scope: onnx_dims.Scope) -> Any:
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


def _decide(condition: Any, scope: onnx_dims.Scope) -> bool:
    """Whether a condition holds for all sizes. Raises Undecided when it holds for some."""
    from tvm import tirx

    if isinstance(condition, bool):
        return condition
    if scope.analyzer.can_prove(condition):
        return True
    if scope.analyzer.can_prove(tirx.Not(condition)):
        return False
    raise Undecided


def _extreme(kind: str) -> Callable[[Any, Any, onnx_dims.Scope], Any]:
    def pick(left: Any, right: Any, scope: onnx_dims.Scope) -> Any:
        from tvm import tirx

        if isinstance(left, int) and isinstance(right, int):
            return max(left, right) if kind == "max" else min(left, right)
        return getattr(tirx, kind)(left, right)

    return pick


def _compare(kind: str) -> Callable[[Any, Any, onnx_dims.Scope], Any]:
    def decide(left: Any, right: Any, scope: onnx_dims.Scope) -> Any:
        from tvm import tirx

        if isinstance(left, int) and isinstance(right, int):
            return {"EQ": left == right, "LT": left < right, "LE": left <= right}[kind]
        left, right = (tirx.const(v, "int64") if isinstance(v, int) else v for v in (left, right))
        return _decide(getattr(tirx, kind)(left, right), scope)

    return decide


def _modulo(left: Any, right: Any, scope: onnx_dims.Scope) -> Any:
    if isinstance(right, int) and right == 0:
        raise Undecided
    return left % right


# Element by element on ints and expressions; `_numeric` does the same on plain numbers.
_SYMBOLIC: dict[str, Callable[[Any, Any, onnx_dims.Scope], Any]] = {
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
}
_COMPARISONS = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
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
            return functools.reduce(lambda a, b: _by_element(op, a, b, node.scope), arrays)
        if op in ("Div", "Mod") and integral:
            return functools.reduce(lambda a, b: _by_element(op, a, b, node.scope), arrays).astype(arrays[0].dtype)
        with np.errstate(all="ignore"):
            function = getattr(np, _NUMPY[op])
            result = function(arrays[0]) if len(arrays) == 1 else functools.reduce(function, arrays)
        return result if op in _COMPARISONS else np.asarray(result, arrays[0].dtype)

    return apply


def _by_element(op: str, left: Any, right: Any, scope: onnx_dims.Scope) -> Any:
    import numpy as np

    left, right = np.broadcast_arrays(left.astype(object), right.astype(object))
    if op not in _SYMBOLIC:
        raise Undecided
    result = np.empty(left.shape, object)
    for index in np.ndindex(left.shape):
        a, b = left[index], right[index]
        if isinstance(a, float) or isinstance(b, float):
            # A size times 2.0 is still exact; anything else is left to the run.
            if op != "Mul" or not all(not isinstance(v, float) or v.is_integer() for v in (a, b)):
                raise Undecided
            a, b = (int(v) if isinstance(v, float) else v for v in (a, b))
        result[index] = _SYMBOLIC[op](a, b, scope)
    return result.astype(bool) if op in _COMPARISONS else result


def _round_down(name: str) -> Callable[[Node], Any]:
    plain = _elementwise(name)
    return lambda node: node.arrays[0] if node.arrays[0].dtype == object else plain(node)


def _reduce(op: str) -> Callable[[Node], Any]:
    def apply(node: Node) -> Any:
        import numpy as np

        array = node.arrays[0]
        if array.dtype == object and array.ndim == 1 and op in ("Mul", "Add") and array.size:
            total = functools.reduce(_SYMBOLIC_REDUCE[op], list(array))
            result = np.empty((1,) if node.attr("keepdims", 1) else (), object)
            result[...] = total
            return result
        if array.dtype == object or array.size == 0:
            raise Undecided
        axes = node.axes(1) or tuple(range(array.ndim))
        function = {"Mul": np.prod, "Add": np.sum, "Max": np.max, "Min": np.min}[op]
        return np.asarray(function(array, axis=tuple(axes), keepdims=bool(node.attr("keepdims", 1)))).astype(
            array.dtype
        )

    return apply


_SYMBOLIC_REDUCE: dict[str, Callable[[Any, Any], Any]] = {"Mul": lambda a, b: a * b, "Add": lambda a, b: a + b}

FOLDS: dict[str, Callable[[Node], Any]] = {
    "Identity": lambda node: node.arrays[0],
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Flatten": lambda node: node.arrays[0].reshape(1, -1) if node.arrays[0].ndim == 1 else _undecided(),
    "Transpose": lambda node: node.arrays[0].transpose(node.attr("perm", None)),
    "Slice": _slice,
    "Concat": _concat,
    "Gather": _gather,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Cast": _cast,
    "Where": _where,
    "Split": _split,
    "ReduceProd": _reduce("Mul"),
    "ReduceSum": _reduce("Add"),
    "ReduceMax": _reduce("Max"),
    "ReduceMin": _reduce("Min"),
    "Floor": _round_down("Floor"),
    "Ceil": _round_down("Ceil"),
    **{op: _elementwise(op) for op in _NUMPY if op not in ("Floor", "Ceil")},
    "Mod": _elementwise("Mod"),
}
"""Operator → its result on `node.arrays`; raises Undecided where the sizes do not decide it."""


def _undecided() -> Any:
    raise Undecided
