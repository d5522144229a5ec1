"""Attention becomes one kernel, with the reshapes, transposes and slices of its heads in its indices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tvm
from tvm import IRModule, relax, tirx

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.attention.form import MASKED, mask_room
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import tir
from relaxc.schedules.operators import Attention
from relaxc.schedules.plan import Plan, Planner
from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls
from relaxc.service.passes.common.views import View, look_through
from relaxc.service.passes.kernels.attention_compute import AttentionSpec, attention
from relaxc.service.passes.precision.dtypes import is_low
from relaxc.service.passes.recognize.attention_logits import Step
from relaxc.service.passes.recognize.attention_operands import Axes, Tensors, operand, place
from relaxc.service.passes.recognize.attention_walk import Found, attention_of, uncast
from relaxc.service.passes.recognize.recognize_safe_softmax import safe_softmaxes
from relaxc.service.passes.simplify.simplify_shapes import shape_of

__all__ = ["RecognizeAttention"]

_MIN_QUERIES = 4
"""Queries under which vectors of them are mostly empty: a step of decoding, bound by reading the keys."""

_OPAQUE = 8
"""TVM's pattern kind of a function that is fused with nothing."""


@tvm.transform.module_pass(opt_level=0, name="RecognizeAttention")
class RecognizeAttention:
    """`softmax(q @ kᵀ * scale + mask) @ v → attention(q, k, v, mask)`, for batched products in float32.

    - Operands of 16 bits are widened where they are made, as each is read many times, unless they are of a dtype that
      the planner has an instruction for; with `narrow` those in float32 are rounded to that dtype for it. Scores,
      softmax and sums are in float32. A result that is only rounded is stored so.
    - The scale may stand on either side of the product, or on both; masks are added, or choose between a score and a
      number (`where`); the softmax may have a guard, `where(isnan(p), 0, p)`, or be a `safe_softmax`.
    - How it is computed, `planner` says, which is asked for the operator; the call carries the plan.
    - Heads are split before and merged behind by `reshape` and `permute_dims`, cut out of a merged product by
      `strided_slice`, shared by `broadcast_to`: the kernel reads and writes where the values are, `[B, S, H * D]`.
    - Masks with a row for each query are transposed, with room for a whole vector behind the last: once for all
      layers, as equal calls are merged.

    Left alone: scores that anything else reads, heads of a symbolic size, fewer than four queries, keys of a symbolic
    number that is no size of the result.
    """

    def __init__(self, cpu: Cpu, planner: Planner | None = None, narrow: str | None = None) -> None:
        self.cpu, self.planner, self.narrow = cpu, planner or planning.Defaults(cpu), narrow

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with one call of a PrimFunc for each attention; the same object if it has none."""
        safe = safe_softmaxes(module)
        rule = partial(_attention, self, safe)
        # From the outermost movement inwards: the result is written where the last of them puts it.
        for name in ("reshape", "permute_dims", "astype", "matmul"):
            module = rewrite_calls(module, {name: rule})
        return module


def _attention(to: RecognizeAttention, safe: Collection[str], call: relax.Call, scope: Scope) -> relax.Expr | None:
    if op_name(call) == "relax.astype" and (stored := _stored(call, scope)) is not None:
        return stored
    found = attention_of(call, scope, safe, _is_batched_product, _unrounded)
    return None if found is None else _emit(to, str(call.ty.dtype), found, scope)


def _stored(call: relax.Call, scope: Scope) -> relax.Expr | None:
    """`cast₁₆(cast₃₂(x₁₆)) → x₁₆`"""
    wide = scope.call(call.args[0], "relax.astype")
    same = wide is not None and is_low(call) and wide.args[0].ty.dtype == call.ty.dtype
    return wide.args[0] if wide is not None and same else None


def _is_batched_product(call: relax.Expr) -> bool:
    """A float32 product of matrices in a batch, with enough rows; its sizes may be symbolic."""
    if op_name(call) != "relax.matmul":
        return False
    shapes = [shape_of(each) for each in (*call.args, call)]
    if any(shape is None or len(shape) < 3 for shape in shapes):
        return False
    rows = tir.as_int(shapes[2][-2])  # type: ignore[index]
    enough = rows is None or rows >= _MIN_QUERIES
    return enough and {str(each.ty.dtype) for each in (*call.args, call)} == {"float32"}


def _emit(to: RecognizeAttention, dtype: str, found: Found, scope: Scope) -> relax.Expr | None:
    product, logits, axes = found.product, found.logits, found.axes
    scores = scope.value(logits.product.source)
    *where, m, n = logits.product.index
    depth = shape_of(scores.args[0])[-1]  # type: ignore[index]
    heads_known = tir.as_int(depth) is not None and _is_batched_product(scores)
    if not heads_known or not tir.same_var(m, axes.m) or not tir.same_var(n, axes.n):
        return None
    if not _sizes_are_the_results(axes, found):
        return None
    axes = axes.with_depth(depth)
    steps, scale = [_seen_through(step, axes, scope) for step in logits.steps], 1.0
    while steps and steps[0].scale is not None:
        scale *= steps.pop(0).scale  # type: ignore[operator]
    query = operand(scores.args[0], (*where, axes.m, axes.d), axes, (axes.m, axes.d), scope, scales=True)
    key = operand(scores.args[1], (*where, axes.d, axes.n), axes, (axes.n, axes.d), scope, scales=True)
    value = operand(product.args[1], (*axes.batch, axes.n, axes.e), axes, (axes.n, axes.e), scope)
    query, key = replace(query, scale=query.scale * key.scale * scale), replace(key, scale=1.0)
    query = _widened(query, axes, (axes.m, axes.d), scope, scales=True)
    key = _widened(key, axes, (axes.n, axes.d), scope)
    value = _widened(value, axes, (axes.n, axes.e), scope)
    stored = dtype if dtype != "float32" else _only_read_as(scope)

    def planned(operands: Sequence[str]) -> Plan:
        return to.planner.plan(_operator(steps, operands, product, logits.masked, axes, stored))

    views = [query, key, value]
    plan = planned([str(view.source.ty.dtype) for view in views])
    low = to.narrow or _dtype_before(views, scope)
    if low is not None and planning.taken_at_once(by_pairs := planned([low] * len(views))) > 1:
        made: dict[Any, relax.Var] = {}
        plan = by_pairs
        query, key, value = (_rounded(view, low, scope, made) for view in views)
    tensors = Tensors(axes)
    spec = AttentionSpec(
        batch=tuple(axes.bounds[each] for each in axes.batch),
        queries=axes.bounds[axes.m],
        keys=axes.bounds[axes.n],
        depth=depth,
        width=axes.bounds[axes.e],
        masked=logits.masked,
        query=tensors.element(query, axes.m, axes.d),
        key=tensors.element(key, axes.n, axes.d),
        value=tensors.element(value, axes.n, axes.e),
        logit=_logit(to.cpu, steps, axes, tensors, scope) if steps else None,
        shape=tuple(found.outer.values()),
        place=lambda *at: place(found.result, dict(zip(found.outer, at, strict=True))),
        dtype=stored,
        plan=plan,
    )
    compute = partial(attention, spec=spec)
    attrs = {"op_pattern": _OPAQUE, MASKED: spec.masked}
    result = scope.emit_te(compute, *tensors.found, name=planning.kernel_name(plan), attrs=attrs)
    return result if dtype == stored else relax.op.astype(result, dtype)


def _only_read_as(scope: Scope) -> str:
    """The dtype of 16 bits that all who read the result round it to; float32 where one does not."""
    readers = scope.readers.of(scope.bound) if scope.bound is not None else []
    casts = [None if each is None or op_name(each.value) != "relax.astype" else each.var for each in readers]
    found = {"float32" if each is None or not is_low(each) else str(each.ty.dtype) for each in casts}
    return found.pop() if len(found) == 1 else "float32"


def _dtype_before(views: Sequence[View], scope: Scope) -> str | None:
    """The dtype of 16 bits that all operands were widened from; None where they were not."""
    casts = [scope.call(view.source, "relax.astype") for view in views]
    found = {None if cast is None or not is_low(cast.args[0]) else str(cast.args[0].ty.dtype) for cast in casts}
    return found.pop() if len(found) == 1 else None


def _rounded(view: View, dtype: str, scope: Scope, made: dict[Any, relax.Var]) -> View:
    """The operand rounded to `dtype` where it is made, or as it was before it was widened from that; see `made`."""
    cast = scope.call(view.source, "relax.astype")
    if cast is not None and str(cast.args[0].ty.dtype) == dtype:
        return replace(view, source=cast.args[0])
    if view.source not in made:
        made[view.source] = scope.emit(relax.op.astype(view.source, dtype))
    return replace(view, source=made[view.source])


def _sizes_are_the_results(axes: Axes, found: Found) -> bool:
    """Whether each symbol in a size is in the result's shape: `emit_te` passes no others."""
    symbols = [var for extent in found.outer.values() for var in tir.variables(tir.size(extent))]
    used = [var for extent in axes.bounds.values() for var in tir.variables(tir.size(extent))]
    return all(any(var.same_as(symbol) for symbol in symbols) for var in used)


def _unrounded(view: View, scope: Scope) -> View:
    """What a value was before it was rounded, and widened again for a product in float32."""
    cast = scope.call(view.source, "relax.astype")
    if cast is None or not is_low(cast.args[0]) or not scope.used_once(view.source):
        return uncast(view, scope)
    narrow = replace(view, source=cast.args[0])
    found = uncast(narrow, scope)
    return view if found is narrow else found


def _widened(view: View, axes: Axes, free: tuple[Any, Any], scope: Scope, *, scales: bool = False) -> View:
    """The operand, widened where it is made if it was widened behind the movements of heads."""
    cast = scope.call(view.source, "relax.astype")
    if cast is None or not is_low(cast.args[0]):
        return view
    narrow = operand(cast.args[0], view.index, axes, free, scope, scales=scales)
    wide = scope.emit(relax.op.astype(narrow.source, "float32"))
    return replace(narrow, source=wide, scale=view.scale * narrow.scale)


def _seen_through(step: Step, axes: Axes, scope: Scope) -> Step:
    """The step with its masks as they are where they come from."""
    masks = (look_through(mask, scope, axes.bounds) if isinstance(mask, View) else mask for mask in step.masks)
    return replace(step, masks=tuple(masks))


def _operator(
    steps: Sequence[Step], operands: Sequence[str], product: relax.Call, masked: str, axes: Axes, stored: str
) -> Attention:
    *batch, heads = (axes.bounds[var] for var in axes.batch)
    dtype = str(product.ty.dtype)
    return Attention(
        batch=_known(tir.product(batch)),
        heads=_known(heads),
        queries=_known(axes.bounds[axes.m]),
        keys=_known(axes.bounds[axes.n]),
        depth=_known(axes.bounds[axes.d]),
        width=_known(axes.bounds[axes.e]),
        logit=tuple(_named(step, axes) for step in steps),
        masked=masked,
        operands=tuple(operands),
        accumulate=dtype,
        out=stored,
    )


def _known(size: Any) -> int:
    return tir.as_int(size) or 0


def _named(step: Step, axes: Axes) -> str:
    """`add.bmn` for a mask with these axes; for one that is a number, and where all are alike, `add`."""
    letters = [*((var, "b") for var in axes.batch[:-1]), (axes.batch[-1], "h"), (axes.m, "m"), (axes.n, "n")]
    indices = [at for mask in step.masks if isinstance(mask, View) for at in mask.index]
    used = dict.fromkeys(letter for var, letter in letters if tir.uses(indices, [var]))
    return f"{step.name}.{''.join(used)}" if used else step.name


def _logit(cpu: Cpu, steps: Sequence[Any], axes: Axes, tensors: Tensors, scope: Scope) -> Callable[..., Any]:
    free = (axes.m, axes.n)
    applied = []
    for step in steps:
        masks = [_transposed(cpu, mask, axes, scope) if isinstance(mask, View) else mask for mask in step.masks]
        loads = [tensors.element(mask, *free) if isinstance(mask, View) else mask for mask in masks]
        applied.append((step.apply, loads))

    def logit(given: Sequence[Any], score: Any, batch: Sequence[Any], m: Any, n: Any) -> Any:
        for apply, loads in applied:
            values = [load(given, batch, m, n) if callable(load) else tirx.const(load, "float32") for load in loads]
            score = apply(score, *values)
        return score

    return logit


def _transposed(cpu: Cpu, mask: View, axes: Axes, scope: Scope) -> View:
    """A mask with its queries along memory, and room behind the last for the vector that it is in."""
    rows = [i for i, at in enumerate(mask.index) if tir.uses(at, [axes.m])]
    if len(rows) != 1 or not tir.same_var(mask.index[rows[0]], axes.m):
        return mask
    order = [axis for axis in range(len(mask.index)) if axis not in rows] + rows
    source = mask.source if order == sorted(order) else scope.emit(relax.op.permute_dims(mask.source, order))
    if room := mask_room(tir.as_int(axes.bounds[axes.m]), cpu.lanes("float32")):
        widths = [0] * (2 * len(order) - 1) + [room]
        source = scope.emit(relax.op.nn.pad(source, widths))
    return replace(mask, source=source, index=tuple(mask.index[axis] for axis in order))
