"""Indexing to TIR that stays inside its buffers whatever the indices are.

Index values are inputs of a request, so TVM's unchecked reads (`take` in mode `fast`, `gather`,
`gather_nd`, `index_tensor`) and writes (`scatter_*`, `index_put`) would let a request read or write
foreign memory. Here a negative index counts from the end and the rest is clipped:
`i ↦ clip(i < 0 ? i + n : i, 0, n - 1)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.relax.transform.legalize_ops import index, manipulate

__all__ = ["INDEXING"]

Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _inside(value: Any, size: Any) -> Any:
    at = value.astype("int64")
    size = size.astype("int64")
    return tirx.max(tirx.min(tirx.Select(at < 0, at + size, at), size - 1), tirx.const(0, "int64"))


def _take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, indices = call.args
    if call.attrs.mode != "fast" or not isinstance(indices.ty, relax.TensorType) or data.ty.ndim < 1:
        return index._take(builder, call)
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % data.ty.ndim
    if call.attrs.axis is None and data.ty.ndim != 1:
        data = builder.emit(relax.op.flatten(data))

    def compute(source: te.Tensor, positions: te.Tensor) -> te.Tensor:
        width = len(positions.shape)
        shape = [*source.shape[:axis], *positions.shape, *source.shape[axis + 1 :]]

        def read(*at: Any) -> Any:
            position = positions(*at[axis : axis + width])
            return source(*at[:axis], _inside(position, source.shape[axis]), *at[axis + width :])

        return te.compute(shape, read, name="take")

    return builder.call_te(compute, data, indices, primfunc_name_hint="take")


def _gather_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis = int(call.attrs.axis) % call.args[0].ty.ndim

    def compute(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def read(*at: Any) -> Any:
            return data(*at[:axis], _inside(indices(*at), data.shape[axis]), *at[axis + 1 :])

        return te.compute(indices.shape, read, name="gather")

    return builder.call_te(compute, *call.args, primfunc_name_hint="gather")


def _gather_nd(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    batch = int(call.attrs.batch_dims)

    def compute(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        outer = len(indices.shape) - 1
        depth = int(indices.shape[-1])
        shape = [*indices.shape[:-1], *data.shape[batch + depth :]]

        def read(*at: Any) -> Any:
            inner = [_inside(indices(*at[:outer], i), data.shape[batch + i]) for i in range(depth)]
            return data(*at[:batch], *inner, *at[outer:])

        return te.compute(shape, read, name="gather_nd")

    return builder.call_te(compute, *call.args, primfunc_name_hint="gather_nd")


def _index_tensor(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, indices = call.args
    checked = [
        _clipped(builder, builder.emit(relax.TupleGetItem(indices, i)), [data.ty.shape[i]])
        for i in range(len(indices.ty.fields))
    ]
    return builder.call_te(topi.index_tensor, data, checked, primfunc_name_hint="index_tensor")


def _clipped(builder: relax.BlockBuilder, indices: relax.Expr, sizes: Sequence[Any]) -> relax.Expr:
    """The indices, inside: all by one size, or coordinate `c` of the last axis by `sizes[c]`."""

    def compute(positions: te.Tensor, *given: Any) -> te.Tensor:
        def bound(*at: Any) -> Any:
            size = given[0]
            for coordinate, other in enumerate(given[1:], start=1):
                size = tirx.Select(at[-1] == coordinate, other, size)
            return _inside(positions(*at), size).astype(str(positions.dtype))

        return te.compute(positions.shape, bound, name="inside")

    # Sizes are arguments: a symbolic one is no dim of the indices, which alone the kernel takes.
    return builder.emit(builder.call_te(compute, indices, *sizes, primfunc_name_hint="inside"))


def _scatter_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, indices, updates = call.args
    size = data.ty.shape[int(call.attrs.axis) % data.ty.ndim]
    checked = relax.Call(call.op, [data, _clipped(builder, indices, [size]), updates], call.attrs)
    return manipulate._scatter_elements(builder, builder.normalize(checked))


def _scatter_nd(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, indices, updates = call.args
    depth = int(indices.ty.shape[-1])
    checked = relax.Call(call.op, [data, _clipped(builder, indices, list(data.ty.shape)[:depth]), updates], call.attrs)
    return manipulate._scatter_nd(builder, builder.normalize(checked))


def _index_put(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, indices, values = call.args
    each = [indices]
    if isinstance(indices.ty, relax.TupleType):
        each = [builder.emit(relax.TupleGetItem(indices, i)) for i in range(len(indices.ty.fields))]
    checked = [_clipped(builder, one, [data.ty.shape[i]]) for i, one in enumerate(each)]
    again = relax.Call(call.op, [data, relax.Tuple(checked), values], call.attrs)
    legal = manipulate._index_put(builder, builder.normalize(again))
    _make_serial(builder, legal.args[0])
    return legal


def _make_serial(builder: relax.BlockBuilder, function: relax.GlobalVar) -> None:
    """TVM scatters in a parallel loop, in which two equal indices race and lose an update."""

    def serial(loop: tirx.For) -> tirx.For:
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    given = builder.get()[function]
    builder.update_func(function, given.with_body(tvm_ffi.structural_map(given.body, (tirx.For, serial))))


INDEXING: dict[str, Legalize] = {
    "relax.take": _take,
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.index_tensor": _index_tensor,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
    "relax.index_put": _index_put,
}
