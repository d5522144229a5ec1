"""Reshapes, transposes and slices: chains become one call, and those that change nothing go."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import Rule, Scope, dims_equal, rewrite_calls

__all__ = ["SimplifyShapes"]


@tvm.transform.module_pass(opt_level=0, name="SimplifyShapes")
class SimplifyShapes:
    """One form for movement without change of order, `reshape`, and one for change of order, `permute_dims`.

    - `expand_dims`, `squeeze`, `flatten`, and transposes that move only axes of size 1, become `reshape`;
    - `reshape(reshape(x)) → reshape(x)`, `permute(permute(x)) → permute(x)`, and none where nothing changes;
    - `permute(reshape(x)) → reshape(permute(x))` where the reshape only adds or removes axes of size 1, so
      that chains meet;
    - the shape of a tensor whose type says it is a literal;
    - slices of everything and broadcasts to the same shape go.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with the shortest chains."""
        return rewrite_calls(module, RULES)


def shape_of(expr: relax.Expr) -> list[Any] | None:
    """Return the sizes of a tensor whose shape is known, symbolic or not."""
    shape = getattr(expr.ty, "shape", None)
    return list(shape) if isinstance(shape, relax.ShapeExpr) else None


def is_one(size: Any) -> bool:
    """Return whether a size is the number 1."""
    return getattr(size, "value", None) == 1


def _reshape(call: relax.Call, scope: Scope) -> relax.Expr | None:
    target = shape_of(call)
    if target is None:
        return None
    source = call.args[0]
    if (inner := scope.call(source, "relax.reshape")) is not None and shape_of(inner.args[0]) is not None:
        return relax.op.reshape(inner.args[0], target)
    have = shape_of(source)
    return source if have is not None and dims_equal(have, target) else None


def _as_reshape(call: relax.Call, _: Scope) -> relax.Expr | None:
    target = shape_of(call)
    return None if target is None else relax.op.reshape(call.args[0], target)


def permutation(call: relax.Call) -> list[int]:
    """Return the axes of a `permute_dims`, none of them counted from the end; without any it reverses them."""
    rank = call.args[0].ty.ndim
    return list(range(rank))[::-1] if call.attrs.axes is None else [int(axis) % rank for axis in call.attrs.axes]


def _permute(call: relax.Call, scope: Scope) -> relax.Expr | None:
    source, axes = call.args[0], permutation(call)
    sizes = shape_of(source)
    if sizes is None:
        return None
    if axes == sorted(axes):
        return source
    if (inner := scope.call(source, "relax.permute_dims")) is not None:
        first = permutation(inner)
        return relax.op.permute_dims(inner.args[0], [first[axis] for axis in axes])
    moved = [axis for axis in axes if not is_one(sizes[axis])]
    if moved == sorted(moved):
        return relax.op.reshape(source, [sizes[axis] for axis in axes])
    if (inner := scope.call(source, "relax.reshape")) is not None:
        return _permute_below(inner.args[0], sizes, axes, scope)
    return None


def _permute_below(value: relax.Expr, sizes: list[Any], axes: list[int], scope: Scope) -> relax.Expr | None:
    """`permute(reshape(value, sizes), axes)` as a reshape of a permute, if the reshape only moves ones about."""
    have = shape_of(value)
    if have is None or len(have) == len(sizes) == 0:
        return None
    source = [axis for axis, size in enumerate(have) if not is_one(size)]
    shown = [axis for axis, size in enumerate(sizes) if not is_one(size)]
    if not dims_equal([have[i] for i in source], [sizes[i] for i in shown]):
        return None
    where = dict(zip(shown, source, strict=True))
    ones = [axis for axis, size in enumerate(have) if is_one(size)]
    order = ones + [where[axis] for axis in axes if axis in where]
    permuted = scope.emit(relax.op.permute_dims(value, order))
    return relax.op.reshape(permuted, [sizes[axis] for axis in axes])


def _broadcast_to(call: relax.Call, _: Scope) -> relax.Expr | None:
    have, want = shape_of(call.args[0]), shape_of(call)
    return call.args[0] if have is not None and want is not None and dims_equal(have, want) else None


def _strided_slice(call: relax.Call, _: Scope) -> relax.Expr | None:
    """A slice from 0 with step 1 of as many elements as there are."""
    have, want = shape_of(call.args[0]), shape_of(call)
    starts = list(call.args[2].fields) if isinstance(call.args[2], relax.Tuple) else [None]
    steps = list(call.args[4].fields) if len(call.args) > 4 and isinstance(call.args[4], relax.Tuple) else []
    if have is None or want is None or not dims_equal(have, want):
        return None
    whole = all(getattr(start, "value", None) == 0 for start in starts)
    return call.args[0] if whole and all(is_one(step) for step in steps) else None


def _shape_of(call: relax.Call, _: Scope) -> relax.Expr | None:
    sizes = shape_of(call.args[0])
    return None if sizes is None else relax.ShapeExpr(sizes)


def _shape_to_tensor(call: relax.Call, scope: Scope) -> relax.Expr | None:
    """The literal in the place of the variable that holds it."""
    shape = scope.value(call.args[0])
    is_new = isinstance(shape, relax.ShapeExpr) and not isinstance(call.args[0], relax.ShapeExpr)
    return relax.op.shape_to_tensor(shape) if is_new else None


RULES: dict[str, Rule] = {
    "shape_of": _shape_of,
    "shape_to_tensor": _shape_to_tensor,
    "reshape": _reshape,
    "expand_dims": _as_reshape,
    "squeeze": _as_reshape,
    "flatten": _as_reshape,
    "nn.batch_flatten": _as_reshape,
    "permute_dims": _permute,
    "broadcast_to": _broadcast_to,
    "strided_slice": _strided_slice,
}
