"""Reshapes around linear layers move down until they meet and vanish."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import Rule, Scope, dims_equal, op_name, rewrite_calls
from relaxc.service.passes.simplify.simplify_shapes import is_one, shape_of

__all__ = ["SinkReshape"]

UNARY = (
    "abs", "astype", "ceil", "clip", "cos", "erf", "exp", "floor", "isfinite", "isinf", "isnan", "log",
    "logical_not", "negative", "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tan",
    "tanh", "nn.relu", "nn.relu6", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.leakyrelu", "nn.softplus",
    "nn.selu",
)  # fmt: skip
BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power",
)  # fmt: skip


@tvm.transform.module_pass(opt_level=0, name="SinkReshape")
class SinkReshape:
    """A reshape between a matmul and its epilogue would keep them in two kernels.

    torch flattens the rows around each linear layer, `reshape(matmul(reshape(x, [R, K]), W) + b, [B, S, N])`, and the
    batch around each attention product. Here:
    - `matmul(reshape(x), W) → reshape(matmul(x, W))` where the reshape keeps the last axis;
    - `matmul(reshape(a), reshape(b)) → reshape(matmul(a, b))` where both flatten the same batch axes;
    - `f(reshape(x)) → reshape(f(x))` for elementwise `f`; with a second operand, where that is a number, a vector
      along a last axis that the reshape keeps, or reshaped from the same shape, or the reshape only leaves out axes of
      one element;
    - `reshape(matmul(reshape(x), W) + b) → matmul(reshape(x), W) + b` with the rows of the outer shape, where the
      inner reshape changes the last axis (attention's heads) and so cannot move down itself;
    - the same for layer_norm, rms_norm and softmax over that last axis.
    SimplifyShapes then removes the pairs.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with reshapes after what they stood before."""
        return rewrite_calls(module, RULES)


def _reshaped(expr: relax.Expr, scope: Scope) -> tuple[relax.Expr, list[Any], list[Any]] | None:
    """What `expr` is a reshape of, with the shapes before and after."""
    inner = scope.call(expr, "relax.reshape")
    if inner is None or scope.constant(inner.args[0]) is not None:
        return None
    before, after = shape_of(inner.args[0]), shape_of(inner)
    return None if before is None or after is None or not before or not after else (inner.args[0], before, after)


def _unary(call: relax.Call, scope: Scope) -> relax.Expr | None:
    found = _reshaped(call.args[0], scope)
    if found is None:
        return None
    value, _, after = found
    inner = scope.emit(relax.Call(call.op, [value, *call.args[1:]], call.attrs))
    return relax.op.reshape(inner, after)


def _rows(call: relax.Call, scope: Scope) -> relax.Expr | None:
    """An operator over the last axis alone."""
    found = _reshaped(call.args[0], scope)
    axes = call.attrs.axes if call.op.name.endswith("_norm") else [call.attrs.axis]
    if found is None or [int(axis) for axis in axes] != [-1] or not dims_equal(found[1][-1:], found[2][-1:]):
        return None
    return _unary(call, scope)


def _binary(call: relax.Call, scope: Scope) -> relax.Expr | None:
    for position in (0, 1):
        found = _reshaped(call.args[position], scope)
        if found is None:
            continue
        value, before, after = found
        other = _unreshaped(call.args[1 - position], before, after, scope)
        if other is None or not dims_equal(after, list(call.ty.shape) if shape_of(call) else []):
            continue
        args = [value, other] if position == 0 else [other, value]
        return relax.op.reshape(scope.emit(relax.Call(call.op, args, call.attrs)), after)
    return None


def _unreshaped(other: relax.Expr, before: list[Any], after: list[Any], scope: Scope) -> relax.Expr | None:
    """The other operand as it applies to the value before the reshape, if it applies to it at all."""
    if not isinstance(other.ty, relax.TensorType):
        return other
    shape = shape_of(other)
    if shape is None:
        return None
    if not shape:
        return other
    again = _reshaped(other, scope)
    if again is not None and dims_equal(again[1], before) and dims_equal(again[2], after):
        return again[0]
    if (spread := _with_ones(shape, before, after)) is not None:
        return scope.emit(relax.op.reshape(other, spread))
    keeps_last = dims_equal(before[-1:], after[-1:])
    if keeps_last and len(shape) == 1:
        return other
    if all(is_one(size) for size in shape[:-1]) and (keeps_last or is_one(shape[-1])):
        return scope.emit(relax.op.reshape(other, shape[-1:]))
    return None


def _with_ones(shape: list[Any], before: list[Any], after: list[Any]) -> list[Any] | None:
    """`shape`, which broadcasts to `after`, for `before`, which has axes of one element besides and is no other."""
    if len(before) <= len(after) or not 2 <= len(shape) <= len(after):
        return None
    rest, made = [*([1] * (len(after) - len(shape))), *shape], []
    left = list(after)
    for at, size in enumerate(before):
        if left and dims_equal([size], left[:1]) and len(left) <= len(before) - at:
            left.pop(0)
            made.append(rest.pop(0))
        elif is_one(size):
            made.append(1)
        else:
            return None
    return None if left else made


def _matmul(call: relax.Call, scope: Scope) -> relax.Expr | None:
    left, right = _reshaped(call.args[0], scope), _reshaped(call.args[1], scope)
    rank = call.args[1].ty.ndim
    after = shape_of(call)
    if after is None or left is None:
        return None
    if right is not None and rank > 2 and _same_batches(left, right):
        product = relax.op.matmul(left[0], right[0], call.attrs.out_dtype)
        return relax.op.reshape(scope.emit(product), after)
    if rank == 2 and len(left[1]) > 1 and dims_equal(left[1][-1:], left[2][-1:]):
        product = relax.op.matmul(left[0], call.args[1], call.attrs.out_dtype)
        return relax.op.reshape(scope.emit(product), after)
    return None


def _same_batches(left: Any, right: Any) -> bool:
    """Whether `[B…, M, K] → [b…, M, K]` and `[B…, K, N] → [b…, K, N]` flatten the same axes to the same."""
    (_, have, want), (_, other_have, other_want) = left, right
    return (
        len(have) > 2
        and len(have) == len(other_have)
        and dims_equal(have[-2:], want[-2:])
        and dims_equal(other_have[-2:], other_want[-2:])
        and dims_equal(have[:-2], other_have[:-2])
        and dims_equal(want[:-2], other_want[:-2])
    )


def _reshape(call: relax.Call, scope: Scope) -> relax.Expr | None:
    """A reshape of the rows of a linear layer and its epilogue, when the layer's own operand is a reshape."""
    target = shape_of(call)
    return None if not target else _with_rows(call.args[0], target, scope)


def _with_rows(value: relax.Expr, target: list[Any], scope: Scope) -> relax.Expr | None:
    """`value` computed with the leading axes of `target`."""
    sizes = shape_of(value)
    found = scope.value(value)
    if not sizes or not isinstance(found, relax.Call) or not scope.used_once(value):
        return None
    name = op_name(found).removeprefix("relax.")
    if not dims_equal(sizes[-1:], target[-1:]):
        return None
    if name == "matmul" and found.args[1].ty.ndim == 2:
        source = _reshaped(found.args[0], scope)
        if source is None or dims_equal(source[1][-1:], source[2][-1:]):
            return None
        rows = scope.emit(relax.op.reshape(source[0], [*target[:-1], source[2][-1]]))
        return relax.op.matmul(rows, found.args[1], found.attrs.out_dtype)
    if name in UNARY or name in BINARY:
        return _epilogue_with_rows(found, target, scope)
    return None


def _epilogue_with_rows(call: relax.Call, target: list[Any], scope: Scope) -> relax.Expr | None:
    for position, arg in enumerate(call.args[:2]):
        others = [other for i, other in enumerate(call.args) if i != position]
        if not isinstance(arg.ty, relax.TensorType) or not all(_is_vector(other) for other in others):
            continue
        inner = _with_rows(arg, target, scope)
        if inner is not None:
            args = list(call.args)
            args[position] = scope.emit(inner)
            return relax.Call(call.op, args, call.attrs)
    return None


def _is_vector(expr: relax.Expr) -> bool:
    """Whether an operand applies to each row alike: no tensor, a number, or a vector along the last axis."""
    return not isinstance(expr.ty, relax.TensorType) or (expr.ty.ndim in (0, 1) and shape_of(expr) is not None)


RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    "matmul": _matmul,
    "reshape": _reshape,
    "nn.softmax": _rows,
    "nn.layer_norm": _rows,
    "nn.rms_norm": _rows,
}
