"""Quantized products of one tensor become one product, with a scale and a zero point for each column."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax
from tvm.relax.expr_functor import mutator

from relaxc.service.passes.common.constants import Array, array_of, constant, is_tensor_constant
from relaxc.service.passes.common.merging import Merging, is_free
from relaxc.service.passes.common.readers import Readers
from relaxc.service.passes.common.rewrite import op_name, static_shape, with_functions
from relaxc.service.passes.precision.dtypes import BYTES, is_low

__all__ = ["MergeQuantizedMatmuls"]

_MOST_STEPS = 16
_MOST_ROWS = 512
"""Of the tensor: of 128 one kernel is faster than three, of 4096 the constants by column cost more than that."""
_MOVEMENTS = ("relax.reshape",)
_NEUTRAL = {"add": 0, "subtract": 0, "multiply": 1}


@tvm.transform.module_pass(opt_level=0, name="MergeQuantizedMatmuls")
class MergeQuantizedMatmuls:
    """`f(x @ Wq), g(x @ Wk), h(x @ Wv)`, of bytes summed in int32, `→` slices of `fgh(x @ [Wq Wk Wv])`

    As MergeParallelMatmuls, of products that are dequantized and rounded to 16 bits: `f` and the others are the same
    steps (add, subtract, multiply, quantize, dequantize, cast) with other constants, of which the merged one has a
    vector each; where one lacks an addition or a factor, it gets 0 or 1. The numbers stay the same, to the bit. Only
    where what reads each result, reshapes aside, is a transpose, and of few rows, whose products start longer than
    they take.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with merged products; the same object if it has none."""
        changed = {}
        for gvar, function in module.functions_items():
            if isinstance(function, relax.Function) and (groups := _groups(function)):
                merged = _Merger(module, groups).visit_expr(function)
                changed[gvar] = relax.analysis.remove_all_unused(merged)
        return with_functions(module, changed)


@dataclass(frozen=True)
class _Step:
    """An operator behind a product, and its constants by column: `name` has the dtypes that it gives."""

    name: str
    constants: tuple[Array, ...] = ()


@dataclass(frozen=True)
class _Chain:
    """`result = steps(data @ weight)`"""

    data: relax.Var
    weight: Array
    steps: tuple[_Step, ...]
    result: relax.Var

    @property
    def columns(self) -> int:
        return int(self.weight.shape[-1])


def _groups(function: relax.Function) -> list[list[_Chain]]:
    readers = Readers(function)
    groups: dict[Any, list[_Chain]] = defaultdict(list)
    for binding in _bindings(function):
        chain = _chain(binding, readers)
        if chain is not None and is_free(chain.result, readers, _MOVEMENTS):
            groups[chain.data, tuple(_skeleton(chain))].append(chain)
    return [group for group in groups.values() if len(group) > 1 and _aligned(group) is not None]


def _bindings(function: relax.Function) -> Iterator[Any]:
    return (binding for block in function.body.blocks for binding in block.bindings)


def _chain(binding: Any, readers: Readers) -> _Chain | None:
    """The product that `binding` is and what is computed of it, as far as to its rounding to 16 bits."""
    value: Any = getattr(binding, "value", None)
    if op_name(value) != "relax.matmul" or str(value.ty.dtype) != "int32":
        return None
    data, weight = value.args
    if not isinstance(data, relax.Var) or not is_tensor_constant(weight) or weight.ty.ndim != 2 or data.ty.ndim < 2:
        return None
    shape = static_shape(data)
    if shape is None or prod(shape[:-1]) > _MOST_ROWS:
        return None
    columns, steps = array_of(weight).shape[-1], list[_Step]()
    while len(steps) < _MOST_STEPS and len(reader := readers.of(binding.var)) == 1 and reader[0] is not None:
        var, binding = binding.var, reader[0]
        step = _step(getattr(binding, "value", None), var, columns)
        if step is None:
            return None
        steps.append(step)
        if is_low(binding.var):
            return _Chain(data, array_of(weight), tuple(steps), binding.var)
    return None


def _step(call: Any, data: relax.Var, columns: int) -> _Step | None:
    """What `call` does with `data`; None where that is no step."""
    name = op_name(call).removeprefix("relax.")
    if name == "astype":
        return _Step(f"astype {call.ty.dtype}")
    if name in ("quantize", "dequantize"):
        constants = [_by_column(each, columns) for each in call.args[1:]]
        if not call.args[0].same_as(data) or any(each is None for each in constants):
            return None
        of_bytes = str(call.attrs.out_dtype) in BYTES if name == "quantize" else str(call.ty.dtype) == "float32"
        found = tuple(each for each in constants if each is not None)
        # Of one scale: those of columns would be numbers of another axis
        is_plain = all(static_shape(each) in ((), (1,)) for each in call.args[1:])
        return _Step(f"{name} {call.attrs.out_dtype} {found[1].dtype}", found) if of_bytes and is_plain else None
    if name not in _NEUTRAL:
        return None
    left, right = call.args
    if name == "subtract" and not left.same_as(data):
        return None
    other = _by_column(right if left.same_as(data) else left, columns)
    return None if other is None or str(call.ty.dtype) != str(data.ty.dtype) else _Step(name, (other,))


def _by_column(expr: relax.Expr, columns: int) -> Array | None:
    """A constant number, or one for each column, as one for each column."""
    if not is_tensor_constant(expr):
        return None
    array = array_of(expr)
    if array.size not in (1, columns) or (array.size > 1 and array.shape[-1] != columns):
        return None
    return np.broadcast_to(array.reshape(-1), (columns,))


def _skeleton(chain: _Chain) -> Iterator[str]:
    return (step.name for step in chain.steps if step.name not in _NEUTRAL)


def _aligned(group: Sequence[_Chain]) -> list[list[_Step]] | None:
    """The steps of the chains, with neutral ones put in where a chain lacks what the longest one has; or None."""
    model = max(group, key=lambda chain: len(chain.steps))
    found = [_filled(chain, model.steps) for chain in group]
    known = [steps for steps in found if steps is not None]
    return known if len(known) == len(found) else None


def _filled(chain: _Chain, model: Sequence[_Step]) -> list[_Step] | None:
    left, found = list(chain.steps), []
    for wanted in model:
        if left and left[0].name == wanted.name:
            found.append(left.pop(0))
        elif wanted.name in _NEUTRAL:
            columns, dtype = chain.columns, wanted.constants[0].dtype
            found.append(_Step(wanted.name, (np.full(columns, _NEUTRAL[wanted.name], dtype),)))
        else:
            return None
    return None if left else found


@mutator
class _Merger(Merging[_Chain]):
    def computed(self, group: list[_Chain]) -> relax.Var:
        """Return what the chains compute, beside each other."""
        data = self.visit_expr(group[0].data)
        weight = constant(np.concatenate([chain.weight for chain in group], axis=1))
        value = self.builder_.emit(relax.op.matmul(data, weight, "int32"))
        for steps in zip(*(_aligned(group) or []), strict=True):
            constants = [np.concatenate(parts) for parts in zip(*(step.constants for step in steps), strict=True)]
            value = self.builder_.emit(_applied(steps[0].name, value, constants))
        return value


def _applied(name: str, value: relax.Var, constants: Sequence[Array]) -> relax.Expr:
    kind, *dtypes = name.split()
    if kind == "astype":
        return relax.op.astype(value, dtypes[0])
    given = [constant(each[0] if (each == each[0]).all() else each) for each in constants]
    if kind in _NEUTRAL:
        operator: Callable[..., Any] = getattr(relax.op, kind)
        return operator(value, *given)
    operator = getattr(relax.op, kind)
    return operator(value, *given, value.ty.ndim - 1, dtypes[0])
