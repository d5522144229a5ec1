"""From the weights of attention back to the product of queries and keys: softmax, masks and scales."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, tirx

from relaxc.service.passes.common.rewrite import Scope, dims_equal, op_name, scalar_of
from relaxc.service.passes.common.views import Bounds, View, broadcast, look_through
from relaxc.service.passes.recognize.attention_rounding import Rounding, round_trip
from relaxc.service.passes.simplify.simplify_shapes import shape_of

__all__ = ["Logits", "Step", "choose", "logits_of"]

_MAX_STEPS = 12

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": tirx.max,
    "minimum": tirx.min,
}


@dataclass(frozen=True)
class Step:
    """`logit = apply(score, *masks)`; a mask is a view, or a number in the place of one."""

    apply: Callable[..., Any]
    masks: tuple[View | float, ...]
    scale: float | None = None
    """The factor, if the step is a product with a number."""
    chooses: tuple[bool, float] | None = None
    """What the mask says of a score that stays, and the number in the others' place, if the step is a choice."""
    adds: bool = False
    """Whether the step adds a mask."""
    name: str = ""
    """What the step is called: `add`, `where`."""
    roundings: tuple[Rounding, ...] = ()
    """What the step does with the score instead, if it is a quantization."""


@dataclass(frozen=True)
class Logits:
    """`softmax(steps(product))`: `product` is a view of a matmul; `masked` as in `AttentionSpec`."""

    product: View
    steps: tuple[Step, ...]
    masked: str


def logits_of(
    weights: View, scope: Scope, bounds: Bounds, safe: Collection[str], *, quantized: bool = False
) -> Logits | None:
    """Return what the softmax that `weights` views is of, innermost step first; `safe` names the safe_softmax
    PrimFuncs.

    None where it is no softmax over the last axis, or anything else reads what is on the way. With `quantized`, scores
    may be quantized on the way.
    """
    found = _softmax(weights, scope, safe)
    if found is None:
        return None
    masked, view = found
    steps: list[Step] = []
    while len(steps) <= _MAX_STEPS:
        view = look_through(view, scope, bounds, once=True)
        if not scope.used_once(view.source):
            return None
        call = scope.value(view.source)
        if op_name(call) == "relax.matmul":
            return Logits(view, tuple(reversed(steps)), masked)
        step = _rounded(view, scope) if quantized and op_name(call) == "relax.dequantize" else _step(call, view, scope)
        if step is None:
            return None
        steps.append(step[0])
        view = replace(view, source=step[1])
    return None


def _step(call: relax.Call, view: View, scope: Scope) -> tuple[Step, relax.Expr] | None:
    return _where(call, view, scope) if op_name(call) == "relax.where" else _binary(call, view, scope)


def _rounded(view: View, scope: Scope) -> tuple[Step, relax.Expr] | None:
    """The quantization of scores, and the scores."""
    found = round_trip(view.source, scope)
    return None if found is None else (Step(_unrounded, (), roundings=found[0], name="quantize"), found[1])


def _unrounded(score: Any) -> Any:
    raise TypeError("a quantization of scores is applied with its tensors")


def _softmax(view: View, scope: Scope, safe: Collection[str]) -> tuple[str, View] | None:
    guarded = _guarded(view, scope)
    source = view.source if guarded is None else guarded
    call = scope.value(source)
    if guarded is None and not scope.used_once(source):
        return None
    if op_name(call) == "relax.nn.softmax":
        last = len(view.index) - 1
        if int(call.attrs.axis) % (last + 1) != last:
            return None
        return "nan" if guarded is None else "never_nan", replace(view, source=call.args[0])
    if op_name(call) == "relax.call_tir" and str(call.args[0].name_hint) in safe:
        return "zero" if guarded is None else "never_nan", replace(view, source=call.args[1].fields[0])
    return None


def _guarded(view: View, scope: Scope) -> relax.Expr | None:
    """The x of `where(isnan(x), 0, x)`, which nothing else reads."""
    call = scope.call(view.source, "relax.where")
    if call is None or not scope.used_once(view.source):
        return None
    test, zero, value = call.args
    nan = scope.call(test, "relax.isnan")
    same = nan is not None and nan.args[0].same_as(value) and scope.used_once(test)
    return value if same and scalar_of(scope, zero) == 0.0 and scope.uses(value) == 2 else None


def _binary(call: relax.Call, view: View, scope: Scope) -> tuple[Step, relax.Expr] | None:
    """A step that combines scores with a number or a mask, and the scores."""
    name = op_name(call).removeprefix("relax.")
    if name not in _BINARY:
        return None
    operator = _BINARY[name]
    for position in (0, 1):
        scores, other = call.args[position], call.args[1 - position]
        mask = _mask(other, view, scope)
        if mask is None or not _keeps_shape(scores, call) or not _leads_to_product(scores, scope):
            continue
        ordered = operator if position == 0 else _swapped(operator)
        return Step(ordered, (mask,), _factor(name, mask, position), adds=name == "add", name=name), scores
    return None


def _swapped(operator: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda score, other: operator(other, score)


def _factor(name: str, other: View | float, position: int) -> float | None:
    if not isinstance(other, float) or name not in ("multiply", "divide"):
        return None
    if name == "multiply":
        return other
    return 1.0 / other if position == 0 and other else None


def _where(call: relax.Call, view: View, scope: Scope) -> tuple[Step, relax.Expr] | None:
    """`where(mask, scores, number)`, or the other way round."""
    test = _mask(call.args[0], view, scope)
    if not isinstance(test, View):
        return None
    for position in (1, 2):
        scores, other = call.args[position], call.args[3 - position]
        value = scalar_of(scope, other)
        if value is None or not _keeps_shape(scores, call) or not _leads_to_product(scores, scope):
            continue
        return Step(choose(position == 1, value), (test,), chooses=(position == 1, value), name="where"), scores
    return None


def choose(keeps_where_true: bool, value: float) -> Callable[[Any, Any], Any]:
    """Return what keeps a score where a mask is `keeps_where_true`, and puts `value` in the others' place."""

    def apply(score: Any, test: Any) -> Any:
        other = tirx.const(value, "float32")
        return tirx.Select(test, score, other) if keeps_where_true else tirx.Select(test, other, score)

    return apply


def _mask(expr: relax.Expr, view: View, scope: Scope) -> View | float | None:
    number = scalar_of(scope, expr)
    if number is not None and str(expr.ty.dtype) != "bool":
        return number
    sizes = shape_of(expr)
    if sizes is None or len(sizes) > len(view.index) or str(expr.ty.dtype) not in ("float32", "bool"):
        return None
    return View(expr, broadcast(view.index, sizes))


def _keeps_shape(scores: relax.Expr, call: relax.Call) -> bool:
    before, after = shape_of(scores), shape_of(call)
    return before is not None and after is not None and dims_equal(before, after)


def _leads_to_product(expr: relax.Expr, scope: Scope, left: int = _MAX_STEPS) -> bool:
    """Whether steps that this module knows lead from a matmul to `expr`."""
    call = scope.value(expr)
    name = op_name(call).removeprefix("relax.")
    if name == "matmul":
        return True
    if not left or name not in (*_BINARY, "where", "reshape", "permute_dims", "quantize", "dequantize"):
        return False
    return any(_leads_to_product(arg, scope, left - 1) for arg in call.args if isinstance(arg.ty, relax.TensorType))
