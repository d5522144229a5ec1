"""Attention of 16-bit operands becomes one kernel for the tensor cores of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tvm
from tvm import IRModule, relax, te, tirx

from relaxc.schedules.cpu.attention.form import MASKED
from relaxc.schedules.ir import tir
from relaxc.schedules.template import Declined
from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls
from relaxc.service.passes.common.views import View, look_through
from relaxc.service.passes.kernels.attention_compute import AttentionSpec, attention
from relaxc.service.passes.precision.dtypes import is_low
from relaxc.service.passes.recognize.attention_logits import Logits
from relaxc.service.passes.recognize.attention_masks import simplified
from relaxc.service.passes.recognize.attention_operands import Axes, Tensors, operand, place
from relaxc.service.passes.recognize.attention_rounding import applied
from relaxc.service.passes.recognize.attention_walk import Found, attention_of, uncast
from relaxc.service.passes.recognize.recognize_safe_softmax import safe_softmaxes
from relaxc.service.passes.simplify.simplify_shapes import shape_of

__all__ = ["RecognizeLowAttention"]

_OPAQUE = 8
"""TVM's pattern kind of a function that is fused with nothing."""

_QUANTIZING = ("relax.quantize", "relax.dequantize")

Matches = Callable[[Any], Any]
"""What a PrimFunc computes, or Declined: the `match` of the template that shall take it."""


@tvm.transform.module_pass(opt_level=0, name="RecognizeLowAttention")
class RecognizeLowAttention:
    """`cast(cast(softmax(q @ kᵀ * scale + mask)) @ v) → attention(q, k, v, mask)`, for products of 16-bit operands.

    As RecognizeAttention finds it, with the casts that `precision` leaves: scores, softmax and sums are fp32. Heads are
    read and written where they are, slices of a merged product in place; its cast moves in front of the slices. Masks
    that are constant go: one that hides nothing, or, for a comparison of positions, a causal one. Of quantized networks
    the kernel quantizes scores, weights and result, each by the numbers that the model has for it; not without
    `quantized`. With `paged`, keys and values that `take` gathers from the pages of a cache, `cache[table]`, are read
    there: a number of a page that is outside is clipped, as `take` does.

    Left alone: what the template does not take, as `matches` says; it runs as it did before.
    """

    def __init__(self, matches: Matches, *, quantized: bool = True, paged: bool = True) -> None:
        self.matches = matches
        self.quantized = quantized
        self.paged = paged

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with one call of a PrimFunc for each attention; the same object if it has none."""
        safe = safe_softmaxes(module)
        rule = partial(self._attention, safe)
        # From the outermost movement inwards: the result is written where the last of them puts it.
        for name in ("reshape", "permute_dims", "astype", "quantize", "dequantize", "matmul"):
            module = rewrite_calls(module, {name: rule})
        return module

    def _attention(self, safe: Collection[str], call: relax.Call, scope: Scope) -> relax.Expr | None:
        if op_name(call) in _QUANTIZING and (not self.quantized or _goes_on(scope)):
            return None
        found = attention_of(call, scope, safe, _is_batched_product, uncast, quantized=self.quantized)
        if found is None:
            return None
        # Keys that an exporter scaled hide their pages, or lie by columns: their scale becomes the scores'
        ways = [(paged, unscaled) for paged in (True, False) for unscaled in (False, True) if self.paged or not paged]
        emitted = (_emit(self.matches, call, found, scope, paged=p, unscaled=u) for p, u in ways)
        return next((each for each in emitted if each is not None), None)


def _goes_on(scope: Scope) -> bool:
    """Whether all that reads the call that is rewritten quantizes or dequantizes it: attention ends behind that."""
    readers = scope.readers.of(scope.bound) if scope.bound is not None else []
    return len(readers) == 1 and readers[0] is not None and op_name(readers[0].value) in _QUANTIZING


def _is_batched_product(call: relax.Expr) -> bool:
    """A product of 16-bit matrices in a batch, summed in fp32; its sizes may be symbolic."""
    if op_name(call) != "relax.matmul" or str(call.ty.dtype) != "float32":
        return False
    shapes = [shape_of(each) for each in (*call.args, call)]
    if any(shape is None or len(shape) < 3 for shape in shapes):
        return False
    return all(is_low(each) for each in call.args) and call.args[0].ty.dtype == call.args[1].ty.dtype


def _emit(
    matches: Matches, call: relax.Call, found: Found, scope: Scope, *, paged: bool, unscaled: bool
) -> relax.Expr | None:
    """The call of the kernel, or None; with `paged`, where it reads keys and values through a table.

    With `unscaled`, queries and keys are those before they were multiplied by numbers.
    """
    product, logits, axes = found.product, found.logits, found.axes
    scores = scope.value(logits.product.source)
    *where, m, n = logits.product.index
    if not _is_batched_product(scores) or not axes.is_at(m, axes.m) or not axes.is_at(n, axes.n):
        return None
    axes = axes.with_depth(shape_of(scores.args[0])[-1])  # type: ignore[index]
    stored: dict[Any, relax.Var] = {}
    views = [
        _stored(operand(expr, index, axes, free, scope, gathers=paged, unscaled=bare), axes, free, scope, stored)
        for expr, index, free, bare in (
            (scores.args[0], (*where, axes.m, axes.d), (axes.m, axes.d), unscaled),
            (scores.args[1], (*where, axes.d, axes.n), (axes.n, axes.d), unscaled),
            (product.args[1], (*axes.batch, axes.n, axes.e), (axes.n, axes.e), False),
        )
    ]
    axes = _with_keys_of(axes, views[1:])
    scale = views[0].scale * views[1].scale
    if (paged and not any(view.gathered for view in views)) or (unscaled and scale == 1.0):
        return None
    views = [replace(view, scale=1.0) for view in views]
    tensors = Tensors(axes)
    query, key, value = (
        tensors.element(view, *free)
        for view, free in zip(views, ((axes.m, axes.d), (axes.n, axes.d), (axes.n, axes.e)), strict=True)
    )
    spec = AttentionSpec(
        batch=tuple(axes.bounds[each] for each in axes.batch),
        queries=axes.bounds[axes.m],
        keys=axes.bounds[axes.n],
        depth=axes.bounds[axes.d],
        width=axes.bounds[axes.e],
        masked=logits.masked,
        query=query,
        key=key,
        value=value,
        logit=_logit(logits, axes, tensors, scope, scale),
        shape=tuple(found.outer.values()),
        place=lambda *at: place(found.result, dict(zip(found.outer, at, strict=True))),
        dtype=str(call.ty.dtype),
        rounded=applied(found.rounded, tensors) if found.rounded else None,
        finish=applied(found.finish, tensors) if found.finish else None,
    )
    compute = partial(attention, spec=spec)
    attrs = {"op_pattern": _OPAQUE, MASKED: spec.masked}
    func, unbound = _prim_func(compute, tensors.found, spec.masked)
    if isinstance(matches(func), Declined):
        return None
    if not tir.variables([dim for each in tensors.found for dim in shape_of(each) or []]):
        return scope.emit_te(compute, *tensors.found, name="attention", attrs=attrs)
    # `emit_te` gives the operands' sizes variables of their own, which the expressions do not have.
    found_type = relax.TensorType(spec.shape, spec.dtype)
    return scope.emit_tir(func.with_attr("op_pattern", _OPAQUE), [*tensors.found, *unbound], found_type, "attention")


def _with_keys_of(axes: Axes, views: Sequence[View]) -> Axes:
    """The axes with as many keys as an operand has rows: a program may have several symbols for one size."""
    if tir.as_int(axes.bounds[axes.n]) is not None:
        return axes
    for view in views:
        for index, size in zip(view.index, shape_of(view.source) or [], strict=True):
            if tir.same_var(index, axes.n):
                return replace(axes, bounds=axes.bounds | {axes.n: size})
    return axes


def _prim_func(compute: Callable[..., Any], operands: Sequence[relax.Expr], masked: str) -> tuple[Any, list[Any]]:
    """The PrimFunc, and the sizes that are no dim of an operand: parameters behind these."""
    shapes = [list(shape_of(each) or []) for each in operands]
    inputs = [te.placeholder(shape, str(each.ty.dtype), name="x") for shape, each in zip(shapes, operands, strict=True)]
    dims = [dim for shape in shapes for dim in shape]
    unbound = [var for var in tir.variables(dims) if not any(tir.same_var(dim, var) for dim in dims)]
    func = te.create_prim_func([*inputs, *unbound, compute(*inputs)], "int64").with_attr(MASKED, masked)
    return func.without_attr("global_symbol"), unbound


def _stored(view: View, axes: Axes, free: tuple[Any, Any], scope: Scope, stored: dict[Any, relax.Var]) -> View:
    """`cast(slice(x)) → slice(cast(x))`, where all that reads `x` are such slices, which the kernel reads in place."""
    cast = scope.call(view.source, "relax.astype")
    part = None if cast is None else scope.call(cast.args[0], "relax.strided_slice")
    if cast is None or part is None or not isinstance(part.args[0], relax.Var):
        return view
    whole, dtype = part.args[0], str(cast.ty.dtype)
    if str(whole.ty.dtype) != "float32" or not _only_in(whole, dtype, scope):
        return view
    if whole not in stored:
        stored[whole] = scope.emit(relax.op.astype(whole, dtype))
    start = replace(view, source=cast.args[0])
    moved = look_through(start, scope, axes.bounds, accept=lambda found: found.source.same_as(whole))
    return replace(moved, source=stored[whole]) if moved.source.same_as(whole) else view


def _only_in(whole: relax.Var, dtype: str, scope: Scope) -> bool:
    """Whether everything that reads `whole` rounds it to `dtype`, or a slice of it."""
    for reader in scope.readers.of(whole):
        name = "" if reader is None else op_name(reader.value)
        if reader is None or name not in ("relax.strided_slice", "relax.astype"):
            return False
        ends = scope.readers.of(reader.var) if name == "relax.strided_slice" else [reader]
        if any(end is None or op_name(end.value) != "relax.astype" or str(end.var.ty.dtype) != dtype for end in ends):
            return False
    return True


def _logit(logits: Logits, axes: Axes, tensors: Tensors, scope: Scope, scale: float) -> Callable[..., Any] | None:
    """What becomes of a score, which is multiplied by `scale` first; None where it stays."""
    steps = [
        (
            step.apply,
            [tensors.element(mask, axes.m, axes.n) if isinstance(mask, View) else mask for mask in step.masks],
            applied(step.roundings, tensors) if step.roundings else None,
        )
        for step in simplified(logits.steps, axes, scope)
    ]

    def logit(given: Sequence[Any], score: Any, batch: Sequence[Any], m: Any, n: Any) -> Any:
        score = score if scale == 1.0 else score * tirx.const(scale, "float32")
        for apply, masks, rounding in steps:
            if rounding is not None:
                score = rounding(given, score)
                continue
            values = [mask(given, batch, m, n) if callable(mask) else tirx.const(mask, "float32") for mask in masks]
            score = apply(score, *values, m=m, n=n) if getattr(apply, "by_position", False) else apply(score, *values)
        return score

    return logit if steps or scale != 1.0 else None
