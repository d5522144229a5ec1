"""Seeded arguments for one PrimFunc: floats, sizes of symbolic dims, and integers that stay valid as indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from relaxc.schedules.cpu import planning, regroup
from relaxc.schedules.ir import tir
from relaxc.schedules.plan import plan_of
from relaxc.service.runtime.tensors import Array, numpy_dtype

__all__ = ["Arguments", "arguments_of"]

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_INT_HIGH = 2
_DRAWN = 4_194_319
"""A prime: longer operands repeat their first elements, in no step with rows or tiles."""


@dataclass(frozen=True)
class Arguments:
    """Arrays and scalars in the order of the parameters; `outputs` are the positions that the PrimFunc writes.

    An output that it also reads (`updated`) must be set anew before each run that is checked.
    """

    values: list[Array | int]
    outputs: tuple[int, ...]
    updated: tuple[int, ...]
    judge: str

    def named_outputs(self, arrays: list[Array]) -> dict[str, Array]:
        """Return the arrays of the outputs by their position, as `relaxc.service.runtime.compare` takes them."""
        return {str(position): array for position, array in zip(self.outputs, arrays, strict=True)}


def arguments_of(func: Any, sizes: Mapping[str, int], *, seed: int, positive: bool) -> Arguments:
    """Return arguments for `func`, the same for equal parameters.

    Floats are normal, or their absolute values. Integers are below the extent of every axis that they index, and else
    0 or 1; those that divide are 1. Weights of a plan are packed as it says. Raise ValueError where a symbolic size is
    not among `sizes`.
    """
    stored = [store.buffer for store in tir.collect(func.body, tirx.BufferStore)]
    read = [load.source for load in tir.loads(func.body)]
    buffers = [position for position, param in enumerate(func.params) if tirx.is_buffer_var(param)]
    written = tuple(p for p in buffers if _is_among(func.params[p], stored)) or tuple(buffers[-1:])
    weight = _weight(func, seed, positive)
    values = [
        weight[1]
        if position == weight[0]
        # Each has its own numbers: they are the same beside weights that are packed in another way.
        else _array(func, param, sizes, np.random.default_rng([seed, position]), positive)
        if position in buffers
        else _size(param, sizes)
        for position, param in enumerate(func.params)
    ]
    floats = [str(func.params[p].dtype) for p in buffers if str(func.params[p].dtype).startswith(("float", "bfloat"))]
    return Arguments(
        values,
        written,
        tuple(p for p in written if _is_among(func.params[p], read)),
        next((name for name in ("bfloat16", "float16", "float32", "float64") if name in floats), ""),
    )


def _weight(func: Any, seed: int, positive: bool) -> tuple[int | None, Any]:
    """The position and the value of weights that a plan has packed: those of one operator are equal before that."""
    plan = plan_of(func)
    position = None if plan is None else regroup.weight_position(func)
    if plan is None or position is None:
        return None, None
    shape = regroup.weight_shape(plan.operator)
    numbers = np.random.default_rng([seed, position]).standard_normal(shape, dtype=np.float32)
    value = (np.abs(numbers) if positive else numbers).astype(numpy_dtype(str(func.params[position].dtype)))
    return position, planning.pack(plan, value)


def _is_among(buffer: Any, others: list[Any]) -> bool:
    return any(buffer.same_as(other) for other in others)


def _array(func: Any, buffer: Any, sizes: Mapping[str, int], rng: np.random.Generator, positive: bool) -> Array:
    shape = tuple(_size(extent, sizes) for extent in buffer.shape)
    name = str(buffer.dtype)
    dtype = numpy_dtype(name)
    if name.startswith(("float", "bfloat")):
        numbers = rng.standard_normal(min(prod(shape), _DRAWN), dtype=np.float32)
        drawn = np.asarray(np.abs(numbers) if positive else numbers).astype(dtype)
        return np.resize(drawn, shape) if prod(shape) else drawn.reshape(shape)
    low, high = (0, 2) if name == "bool" else _bounds(func, buffer, sizes)
    return np.asarray(rng.integers(low, high, shape)).astype(dtype)


def _size(extent: Any, sizes: Mapping[str, int]) -> int:
    """An extent with the sizes put in."""
    expression = extent
    for var in tir.variables(extent) if not isinstance(extent, int) else []:
        if str(var.name) not in sizes:
            raise ValueError(f"the size of the symbolic dim {var.name} is not given")
        expression = tir.substitute(expression, {var: tirx.const(sizes[str(var.name)], str(var.ty.dtype))})
    known = tir.as_int(tir.simplify(expression)) if not isinstance(expression, int) else expression
    if known is None:
        raise ValueError(f"the size {extent} is not known")
    return known


def _bounds(func: Any, buffer: Any, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The least value of an integer operand, and the one after the most."""
    indexed = [
        _size(extent, sizes)
        for source, indices in _accesses(func)
        for extent, index in zip(source.shape, indices, strict=True)
        if _loads_from(index, buffer)
    ]
    if indexed:
        return 0, max(1, min(indexed))
    divides = any(_loads_from(node.b, buffer) for node in tir.collect(func.body, _DIVISIONS))
    return (1, 2) if divides else (0, _INT_HIGH)


def _accesses(func: Any) -> list[tuple[Any, Any]]:
    """Every buffer that is loaded or stored, with its indices."""
    stores = [(store.buffer, store.indices) for store in tir.collect(func.body, tirx.BufferStore)]
    return [*((load.source, load.indices) for load in tir.loads(func.body)), *stores]


def _loads_from(expr: Any, buffer: Any) -> bool:
    return any(load.source.same_as(buffer) for load in tir.loads(expr))
