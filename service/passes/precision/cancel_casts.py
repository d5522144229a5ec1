"""Casts move down until a narrowing one meets the widening one after it, and both go."""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls, static_shape
from relaxc.service.passes.precision.dtypes import CONTRACTIONS, LOW, MOVES, is_low

__all__ = ["CancelCasts"]


_NORMS = ("relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.group_norm", "relax.nn.instance_norm")
_ACTIVATIONS = ("nn.silu", "nn.gelu", "nn.gelu_tanh", "nn.relu")
_JOINING = ("relax.add", "relax.multiply")
_STEPS = 8


@tvm.transform.module_pass(opt_level=0, name="CancelCasts")
class CancelCasts:
    """`cast₃₂(cast₁₆(x₃₂)) → x₃₂`, and `move(cast(x)) → cast(move(x))` so that they meet.

    The first is no identity: it leaves out a rounding, which makes the result more exact. So it runs only on
    models in mixed precision, after WidenArithmetic, and not on a model whose casts are its own affair.

    A rounding stays, for all its readers, where one of them reads the 16 bits, as a product does: they are stored then.
    Nothing behind this pass could tell such a value from one that the model has in float32 beside its rounding.

    With `stored`, the roundings stay where one kernel ends and others begin, as far as that is known before fusion:
    where a value has several readers, before a norm or a product, and where a product is added to or multiplied with a
    computed value. What is between kernels is then half as large, and no less exact than the model says.
    """

    def __init__(self, *, stored: bool = False) -> None:
        self.stored = stored

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module without the roundings between one operator and the next."""
        return rewrite_calls(
            module, {"astype": partial(_round_trip, self.stored), **dict.fromkeys(MOVES, partial(_sink, self.stored))}
        )


def _cast(expr: relax.Expr, scope: Scope) -> relax.Call | None:
    """The cast between a 16-bit float and fp32 that `expr` is."""
    found = scope.call(expr, "relax.astype")
    if found is None:
        return None
    source, result = str(found.args[0].ty.dtype), str(found.ty.dtype)
    between = (source in LOW and result == "float32") or (source == "float32" and result in LOW)
    return found if between else None


def _round_trip(stored: bool, call: relax.Call, scope: Scope) -> relax.Expr | None:
    inner = _cast(call.args[0], scope)
    if inner is None or not is_low(inner) or str(call.ty.dtype) != "float32":
        return None
    if stored and (not scope.used_once(call.args[0]) or _begins_a_kernel(inner.args[0], scope)):
        return None
    return None if _is_read_low(call.args[0], scope) else inner.args[0]


def _is_read_low(narrow: relax.Expr, scope: Scope) -> bool:
    """Whether anything but a widening cast reads a value of 16 bits, moves aside, or this walk cannot know."""
    pending = [narrow]
    while pending:
        var = pending.pop()
        readers = scope.readers.of(var) if isinstance(var, relax.Var) else []
        for reader in readers or [None]:
            value = None if reader is None else reader.value
            if isinstance(value, relax.Tuple) or op_name(value).removeprefix("relax.") in MOVES:
                pending.append(reader.var)  # type: ignore[union-attr]
            elif op_name(value) != "relax.astype" or is_low(value):
                return True
    return False


def _begins_a_kernel(made: relax.Expr, scope: Scope) -> bool:
    """Whether what reads the cast that is being rewritten is no epilogue of what `made` its operand, or not surely."""
    readers = scope.readers.of(scope.bound) if scope.bound is not None else []
    if len(readers) != 1 or readers[0] is None:
        return True
    name = op_name(readers[0].value)
    if name in _NORMS or name.removeprefix("relax.") in CONTRACTIONS:
        return True
    return _is_product(made, scope) and _joins(readers[0], scope)


def _is_product(made: relax.Expr, scope: Scope) -> bool:
    """Whether `made` is a contraction, with a bias and an activation or without, moves aside."""
    value = scope.value(made)
    while op_name(value).removeprefix("relax.") in (*MOVES, *_ACTIVATIONS, "add"):
        value = scope.value(value.args[0])
    return op_name(value).removeprefix("relax.") in CONTRACTIONS


def _joins(reader: relax.VarBinding, scope: Scope) -> bool:
    """Whether `reader` adds or multiplies two values of one shape that are both computed, other than scores."""
    if op_name(reader.value) not in _JOINING:
        return False
    left, right = reader.value.args
    shape = static_shape(left)
    if shape is None or shape != static_shape(right) or any(scope.constant(each) is not None for each in (left, right)):
        return False
    return not _reaches_softmax(reader, scope)


def _reaches_softmax(binding: relax.VarBinding, scope: Scope) -> bool:
    """Whether a softmax is what reads the value, a few operators on: attention is recognized without roundings."""
    for _ in range(_STEPS):
        readers = scope.readers.of(binding.var)
        if len(readers) != 1 or readers[0] is None:
            return False
        binding = readers[0]
        if op_name(binding.value) == "relax.nn.softmax":
            return True
    return False


def _sink(stored: bool, call: relax.Call, scope: Scope) -> relax.Expr | None:
    data, *others = call.args
    if isinstance(data.ty, relax.TupleType):
        return _sink_all(call, scope)
    found = _cast(data, scope)
    if found is None or (is_low(found) and (_is_read_low(data, scope) or (stored and not scope.used_once(data)))):
        return None
    moved = scope.emit(relax.Call(call.op, [found.args[0], *others], call.attrs))
    return relax.op.astype(moved, str(found.ty.dtype))


def _sink_all(call: relax.Call, scope: Scope) -> relax.Expr | None:
    fields = scope.value(call.args[0])
    casts = [_cast(field, scope) for field in fields.fields] if isinstance(fields, relax.Tuple) else [None]
    known = [cast for cast in casts if cast is not None]
    if len(known) != len(casts) or len({str(cast.args[0].ty.dtype) for cast in known}) != 1:
        return None
    moved = scope.emit(relax.Call(call.op, [relax.Tuple([cast.args[0] for cast in known])], call.attrs))
    return relax.op.astype(moved, str(call.ty.dtype))
