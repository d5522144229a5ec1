"""What an expression is without the movements between: a tensor, and where each of its elements comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, tirx

from relaxc.schedules.ir import tir
from relaxc.service.passes.common.rewrite import Scope, dims_equal, op_name, scalar_of
from relaxc.service.passes.simplify.simplify_shapes import is_one, permutation, shape_of

__all__ = ["Gathered", "View", "broadcast", "look_through"]


@dataclass(frozen=True)
class Gathered:
    """`var = clip(table[index], 0, size - 1)`"""

    var: Any
    table: relax.Expr
    index: tuple[Any, ...]
    size: int


@dataclass(frozen=True)
class View:
    """`x[…] = source[index] * scale` for the element of x at the place that the index is written in."""

    source: relax.Expr
    index: tuple[Any, ...]
    scale: float = 1.0
    gathered: tuple[Gathered, ...] = ()
    """What stands for the variables of the index that are read from tables."""


Bounds = Mapping[Any, Any]
"""The extents of the variables that an index is written in."""


def look_through(
    view: View,
    scope: Scope,
    bounds: Bounds,
    *,
    accept: Callable[[View], bool] = lambda view: True,
    scales: bool = False,
    gathers: bool = False,
    casts: bool = False,
    once: bool = False,
) -> View:
    """Return `view` with the movements (and with `scales`, products with a number) that its source is made by undone.

    With `gathers` also what takes slices of the source by a table, with `casts` those between 16-bit floats and fp32.

    The last view on the way that `accept` takes, which must take the first. With `once`, stops at what anything
    else reads.
    """
    best = view
    while not once or not isinstance(view.source, relax.Var) or scope.used_once(view.source):
        step = _step(view, scope, scales) or (_gather(view, scope) if gathers else None)
        step = _uncast(view, scope) if step is None and casts else step
        if step is None:
            break
        view = _simplified(step, bounds)
        best = view if accept(view) else best
    return best


def _simplified(view: View, bounds: Bounds) -> View:
    within = {**bounds, **{each.var: each.size for each in view.gathered}}
    gathered = tuple(
        replace(each, index=tuple(tir.simplify(at, bounds) for at in each.index)) for each in view.gathered
    )
    return replace(view, index=tuple(tir.simplify(each, within) for each in view.index), gathered=gathered)


def broadcast(index: Sequence[Any], sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Return the index into a tensor of `sizes` that numpy's broadcasting reads for `index` of the result."""
    own = list(index)[len(index) - len(sizes) :]
    return tuple(tir.zero(at) if is_one(size) else at for at, size in zip(own, sizes, strict=True))


def _step(view: View, scope: Scope, scales: bool) -> View | None:
    call = scope.value(view.source)
    name = op_name(call).removeprefix("relax.")
    rule = _STEPS.get(name) or (_SCALES.get(name) if scales else None)
    return None if rule is None else rule(call, view, scope)


def _permute(call: relax.Call, view: View, _: Scope) -> View | None:
    axes = permutation(call)
    return replace(view, source=call.args[0], index=tuple(view.index[axes.index(axis)] for axis in range(len(axes))))


def _reshape(call: relax.Call, view: View, _: Scope) -> View | None:
    before, after = shape_of(call.args[0]), shape_of(call)
    if before is None or after is None:
        return None
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    middle = slice(head, len(after) - tail)
    flat = tir.flatten(view.index[middle], after[middle])
    inner = tir.unflatten(flat, before[head : len(before) - tail])
    return replace(view, source=call.args[0], index=(*view.index[:head], *inner, *view.index[len(after) - tail :]))


def _common(left: Sequence[Any], right: Sequence[Any]) -> int:
    """How many of the first sizes are equal."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if not dims_equal([a], [b])), min(len(left), len(right)))


def _broadcast_to(call: relax.Call, view: View, _: Scope) -> View | None:
    sizes = shape_of(call.args[0])
    return None if sizes is None else replace(view, source=call.args[0], index=broadcast(view.index, sizes))


def _repeat(call: relax.Call, view: View, _: Scope) -> View | None:
    if call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(view.index)
    index = list(view.index)
    index[axis] = tirx.floordiv(index[axis], int(call.attrs.repeats))
    return replace(view, source=call.args[0], index=tuple(index))


def _strided_slice(call: relax.Call, view: View, _: Scope) -> View | None:
    sizes = shape_of(call.args[0])
    parts = [list(arg.fields) for arg in call.args[1:] if isinstance(arg, relax.Tuple)]
    if (
        len(parts) != len(call.args) - 1
        or sizes is None
        or any(not is_one(step) for part in parts[3:] for step in part)
    ):
        return None
    index = list(view.index)
    for axis, begin in zip(*([getattr(each, "value", None) for each in part] for part in parts[:2]), strict=True):
        length = None if axis is None else tir.as_int(sizes[axis])
        if begin is None or length is None or not 0 <= begin <= length:
            return None
        index[axis] = index[axis] + begin
    return replace(view, source=call.args[0], index=tuple(index))


def _take(call: relax.Call, view: View, scope: Scope) -> View | None:
    """One index out of an axis, which goes."""
    at, sizes = scalar_of(scope, call.args[1]), shape_of(call.args[0])
    if at is None or call.args[1].ty.ndim != 0 or call.attrs.axis is None or sizes is None:
        return None
    axis = int(call.attrs.axis) % len(sizes)
    length = tir.as_int(sizes[axis])
    if length is None or not 0 <= at < length:
        return None
    index = [*view.index[:axis], tirx.const(int(at), "int64"), *view.index[axis:]]
    return replace(view, source=call.args[0], index=tuple(index))


def _uncast(view: View, scope: Scope) -> View | None:
    call = scope.call(view.source, "relax.astype")
    dtypes = () if call is None else tuple(sorted(str(each.ty.dtype) for each in (call, call.args[0])))
    known = dtypes in (("float16", "float32"), ("bfloat16", "float32"))
    return replace(view, source=call.args[0]) if call is not None and known else None


def _gather(view: View, scope: Scope) -> View | None:
    """Slices of an axis that a tensor of integers names, each clipped into it."""
    call = scope.call(view.source, "relax.take")
    if call is None or str(call.attrs.mode) != "clip" or call.attrs.axis is None:
        return None
    table, sizes = call.args[1], shape_of(call.args[0])
    if sizes is None or not isinstance(table.ty, relax.TensorType) or str(table.ty.dtype) not in ("int32", "int64"):
        return None
    axis, rank = int(call.attrs.axis) % len(sizes), table.ty.ndim
    length = tir.as_int(sizes[axis])
    if length is None or not length or not rank:
        return None
    var = tirx.Var("page", "int64")
    found = Gathered(var, table, tuple(view.index[axis : axis + rank]), length)
    index = (*view.index[:axis], var, *view.index[axis + rank :])
    return replace(view, source=call.args[0], index=index, gathered=(*view.gathered, found))


def _multiply(call: relax.Call, view: View, scope: Scope) -> View | None:
    for position in (0, 1):
        factor = scalar_of(scope, call.args[1 - position])
        source = call.args[position]
        if factor is not None and _same_sizes(source, call):
            return replace(view, source=source, scale=view.scale * factor)
    return None


def _divide(call: relax.Call, view: View, scope: Scope) -> View | None:
    by = scalar_of(scope, call.args[1])
    if by is None or by == 0.0 or not _same_sizes(call.args[0], call):
        return None
    return replace(view, source=call.args[0], scale=view.scale / by)


def _same_sizes(source: relax.Expr, call: relax.Call) -> bool:
    before, after = shape_of(source), shape_of(call)
    return before is not None and after is not None and dims_equal(before, after)


_STEPS: dict[str, Callable[[relax.Call, View, Scope], View | None]] = {
    "permute_dims": _permute,
    "reshape": _reshape,
    "broadcast_to": _broadcast_to,
    "repeat": _repeat,
    "strided_slice": _strided_slice,
    "take": _take,
}
_SCALES: dict[str, Callable[[relax.Call, View, Scope], View | None]] = {"multiply": _multiply, "divide": _divide}
