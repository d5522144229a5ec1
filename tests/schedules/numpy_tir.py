"""What a PrimFunc computes, by numpy: each block's value over its whole domain at once, floats in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import ml_dtypes
import numpy as np
from tvm import tirx
from tvm.ir import Call, TensorLoad

from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.dtypes import is_float

__all__ = ["computed", "numpy_dtype", "random_inputs"]

Array = np.ndarray[Any, Any]

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
    tirx.LShift: np.left_shift,
    tirx.RShift: np.right_shift,
    tirx.BitwiseAnd: np.bitwise_and,
    tirx.BitwiseOr: np.bitwise_or,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "fabs": np.abs,
    "isnan": np.isnan,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(erf, otypes=[np.float64]),
    "likely": lambda x: x,
}
_REDUCE: dict[type, Callable[[Array, tuple[int, ...]], Any]] = {
    tirx.Add: lambda terms, axes: np.sum(terms, axes, dtype=terms.dtype),
    tirx.Mul: lambda terms, axes: np.prod(terms, axes, dtype=terms.dtype),
    tirx.Min: np.min,
    tirx.Max: np.max,
}


def numpy_dtype(dtype: str) -> Any:
    """Return numpy's type for TVM's name of it."""
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def random_inputs(func: Any, seed: int = 0) -> list[Array]:
    """Return an array for each parameter: floats from a normal distribution, integers from all of a small type's."""
    rng = np.random.default_rng(seed)
    return [_random(rng, [int(n) for n in p.shape], str(p.dtype)) for p in func.params]


def _random(rng: np.random.Generator, shape: list[int], dtype: str) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if is_float(dtype):
        return rng.standard_normal(shape).astype(numpy_dtype(dtype))
    limits = np.iinfo(dtype)
    return rng.integers(max(limits.min, -1000), min(limits.max, 1000) + 1, shape).astype(dtype)


def computed(func: Any, arrays: list[Array]) -> list[Array]:
    """Return the parameters after `func` ran on `arrays`; its blocks must be plain nests of sizes that are known."""
    buffers: dict[Any, Array] = {}
    for param, array in zip(func.params, arrays, strict=True):
        buffers[param] = _wide(array.copy())
    for nest in analysis.nests(func):
        assert nest is not None, "a statement is no plain loop nest"
        _run(nest.block, buffers)
    return [buffers[p].astype(numpy_dtype(str(p.dtype))) for p in func.params]


def _run(block: Any, buffers: dict[Any, Array]) -> None:
    store = block.body
    spatial = [iv for iv in block.iter_vars if not analysis.reduces(iv)]
    reduced = [iv for iv in block.iter_vars if analysis.reduces(iv)]
    sizes = [int(iv.dom.extent) for iv in (*spatial, *reduced)]
    grids = np.meshgrid(*map(np.arange, sizes), indexing="ij", sparse=True) if sizes else []
    values: dict[Any, Any] = dict(zip([iv.var for iv in (*spatial, *reduced)], grids, strict=True))
    shape = [int(extent) for extent in store.buffer.shape]
    buffers.setdefault(store.buffer, _wide(np.zeros(shape, numpy_dtype(str(store.buffer.dtype)))))
    if block.init is None:
        result = np.broadcast_to(_value(store.value, values, buffers), sizes)
    else:
        rank, kind = len(spatial), type(store.value)
        terms = np.broadcast_to(_value(_term(store), values, buffers), sizes)
        result = _REDUCE[kind](terms, tuple(range(rank, len(sizes))))
        result = _BINARY[kind](result, _value(block.init.value, {}, buffers))
        values = {iv.var: values[iv.var].reshape(values[iv.var].shape[:rank]) for iv in spatial}
        sizes = sizes[:rank]
    indices = tuple(np.broadcast_to(_value(index, values, buffers), sizes) for index in store.indices)
    buffers[store.buffer][indices] = _rounded(np.asarray(result), str(store.buffer.dtype))


def _term(store: Any) -> Any:
    for this, other in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
        if tir.loads_what_it_stores(this, store):
            return other
    raise AssertionError(f"no reduction: {store}")


def _wide(array: Array) -> Array:
    """Floats as float64, everything else as it is."""
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16 else array


def _rounded(array: Array, dtype: str) -> Array:
    """The values as elements of `dtype`, floats in float64 again."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _wide(array.astype(numpy_dtype(dtype)))


def _value(expr: Any, values: Mapping[Any, Any], buffers: Mapping[Any, Array]) -> Any:
    def of(node: Any) -> Any:
        return _value(node, values, buffers)

    if isinstance(expr, tirx.Var):
        return values[expr]
    if isinstance(expr, tirx.IntImm | tirx.FloatImm):
        number: Any = expr.value
        return _wide(np.asarray(number, numpy_dtype(str(expr.ty.dtype))))
    if isinstance(expr, TensorLoad):
        buffer = buffers[expr.source]
        # What is out of bounds is in a branch that is not taken.
        indices = [np.clip(of(i), 0, max(0, n - 1)) for i, n in zip(expr.indices, buffer.shape, strict=True)]
        return buffer[tuple(np.broadcast_arrays(*indices))] if indices else buffer[()]
    if isinstance(expr, tirx.Cast):
        return _rounded(np.asarray(of(expr.value)), str(expr.ty.dtype))
    if isinstance(expr, tirx.Select):
        return np.where(of(expr.condition), of(expr.true_value), of(expr.false_value))
    if isinstance(expr, tirx.Not):
        return np.logical_not(of(expr.a))
    if isinstance(expr, tirx.Div):
        a, b = of(expr.a), of(expr.b)
        return a / b if is_float(str(expr.ty.dtype)) else np.trunc(a / b).astype(str(expr.ty.dtype))
    if type(expr) in _BINARY:
        return _BINARY[type(expr)](of(expr.a), of(expr.b))
    if tir.is_if_then_else(expr):
        condition, taken, other = map(of, expr.args)
        return np.where(condition, taken, other)
    assert isinstance(expr, Call), expr
    if str(expr.op.name) == "tirx.reinterpret":
        given, wanted = (numpy_dtype(str(each.ty.dtype)) for each in (expr.args[0], expr))
        return _wide(np.asarray(of(expr.args[0])).astype(given).view(wanted))
    return _CALLS[str(expr.op.name).rpartition(".")[2]](*map(of, expr.args))
