"""An attention from its result inwards: the movement of heads, the product with the values, and the logits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, tirx

from relaxc.service.passes.common.rewrite import Scope, op_name
from relaxc.service.passes.common.views import View, broadcast, look_through
from relaxc.service.passes.precision.dtypes import is_low
from relaxc.service.passes.recognize.attention_logits import Logits, logits_of
from relaxc.service.passes.recognize.attention_operands import Axes, keeps_columns
from relaxc.service.passes.recognize.attention_rounding import Rounding, finished, round_trip
from relaxc.service.passes.simplify.simplify_shapes import shape_of

__all__ = ["Found", "attention_of", "uncast"]


@dataclass(frozen=True)
class Found:
    """`product`: the weights with the values. `result` says which of its elements stands at the indices `outer`."""

    product: relax.Call
    logits: Logits
    axes: Axes
    result: View
    outer: dict[Any, Any]
    rounded: tuple[Rounding, ...] = ()
    """What becomes of the weights before they are multiplied, innermost first."""
    finish: tuple[Rounding, ...] = ()
    """What becomes of the sums before they are stored, innermost first."""


def attention_of(
    call: relax.Call,
    scope: Scope,
    safe: Collection[str],
    is_product: Callable[[relax.Expr], bool],
    uncast: Callable[[View, Scope], View] = lambda view, scope: view,
    *,
    quantized: bool = False,
) -> Found | None:
    """Return the attention whose result `call` is, or None.

    `is_product` says which products may be its outer one, and `uncast` goes through the casts around weights and
    result. `safe` are the names of functions that are a softmax with a guard. With `quantized`, scores, weights and
    result may be quantized.
    """
    sizes = shape_of(call)
    if sizes is None or (op_name(call) == "relax.reshape" and scope.call(call.args[0], "relax.permute_dims") is None):
        return None
    outer = {tirx.Var(f"i{i}", "int64"): size for i, size in enumerate(sizes)}
    finish: tuple[Rounding, ...] = ()
    if quantized:
        result, finish = finished(View(call, tuple(outer)), scope, outer)
    else:
        result = uncast(look_through(View(call, tuple(outer)), scope, outer, once=True), scope)
    product = scope.value(result.source)
    shared = isinstance(result.source, relax.Var) and not scope.used_once(result.source)
    if shared or not is_product(product):
        return None
    *batch, queries, width = shape_of(product)  # type: ignore[misc]
    axes = Axes.of(batch, queries, shape_of(product.args[1])[-2], width)  # type: ignore[index]
    if not keeps_columns(result, outer, width):
        return None
    weights = View(product.args[0], broadcast((*axes.batch, axes.m, axes.n), shape_of(product.args[0]) or []))
    weights = uncast(look_through(weights, scope, axes.bounds, once=True), scope)
    found = round_trip(weights.source, scope, keeps_zero=True) if quantized else None
    rounded, source = ((), weights.source) if found is None else found
    weights = look_through(replace(weights, source=source), scope, axes.bounds, once=True)
    logits = logits_of(weights, scope, axes.bounds, safe, quantized=quantized)
    return None if logits is None else Found(product, logits, axes, result, outer, rounded, finish)


def uncast(view: View, scope: Scope) -> View:
    """Return what a value was before it was rounded, if nothing else reads either."""
    cast = scope.call(view.source, "relax.astype")
    shared = isinstance(view.source, relax.Var) and not scope.used_once(view.source)
    if cast is None or shared or not is_low(cast) or str(cast.args[0].ty.dtype) != "float32":
        return view
    return replace(view, source=cast.args[0])
