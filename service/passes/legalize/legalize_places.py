"""Places of the largest and the smallest number: TVM's begin at the last number of the dtype, with the place -1.

argmax of a row of -∞, of 0 in uint8    →  0     it was -1
argmax of numbers and NaN               →  the first NaN, as in torch and numpy
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tvm import relax, te, tirx

from relaxc.schedules.ir.dtypes import is_float

__all__ = ["PLACES", "PLACES_BY_KEYS"]

_AFTER_ALL = 1 << 62
"""A place that loses every tie."""
_PLACES = (1 << 32) - 1
"""The half of a key that has the place."""
_INFINITY, _MOST = 0x7F800000, 0x7FFFFFFF
_ORDERED = ("float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32")
"""The dtypes whose order 32 bits can keep."""


def _place(builder: relax.BlockBuilder, call: relax.Call, *, by_keys: bool = False) -> relax.Expr:
    (data,), keep = call.args, bool(call.attrs.keepdims)
    if str(data.ty.dtype) == "bfloat16":  # TVM builds no reduction of pairs of it
        data = builder.emit(relax.op.astype(data, "float32"))
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % data.ty.ndim
    rank = data.ty.ndim
    if call.attrs.axis is None:
        data = builder.emit(relax.op.flatten(data))
    largest = call.op.name == "relax.argmax"
    keeps_axis = keep and call.attrs.axis is not None
    first = _first_by_keys if by_keys and str(data.ty.dtype) in _ORDERED else _first
    found = builder.call_te(
        lambda x: first(x, axis, keep=keeps_axis, largest=largest),
        builder.normalize(data),
        primfunc_name_hint=call.op.name.removeprefix("relax."),
    )
    return found if keeps_axis or not keep else relax.op.reshape(builder.emit(found), [1] * rank)


def _first(x: te.Tensor, axis: int, *, keep: bool, largest: bool) -> te.Tensor:
    """The place of the first of equal numbers along an axis; NaN is ahead of all of them.

    Of selects alone: with `or` LLVM makes branches, and no vectors.
    """
    floats = is_float(str(x.dtype))

    def better(a: Any, b: Any) -> Any:
        ahead = a[1] > b[1] if largest else a[1] < b[1]
        earlier = a[0] <= b[0]
        left = tirx.Select(a[1] == b[1], earlier, ahead)
        if floats:
            of_nan = tirx.Select(tirx.isnan(b[1]), earlier, tirx.const(1, "bool"))
            left = tirx.Select(tirx.isnan(a[1]), of_nan, left)
        return tirx.Select(left, a[0], b[0]), tirx.Select(left, a[1], b[1])

    def start(index: str, value: str) -> Any:
        worst = -math.inf if largest else math.inf
        last = tirx.min_value(value) if largest else tirx.max_value(value)
        return tirx.const(_AFTER_ALL, index), tirx.const(worst, value) if floats else last

    reducer = te.comm_reducer(better, start, name="arg")
    tap = te.reduce_axis((0, x.shape[axis].astype("int64")), name="k")
    shape = [1 if i == axis else dim for i, dim in enumerate(x.shape) if keep or i != axis]

    def element(*index: Any) -> Any:
        behind = index[axis + 1 :] if keep else index[axis:]
        return reducer((tap, x(*index[:axis], tap, *behind)), axis=tap)

    places: te.Tensor = te.compute(shape, element, name="arg")[0]
    return places


def _first_by_keys(x: te.Tensor, axis: int, *, keep: bool, largest: bool) -> te.Tensor:
    """The same as the largest, or least, of numbers in which the place is behind the order: one number is reduced."""
    tap = te.reduce_axis((0, x.shape[axis].astype("int64")), name="k")
    shape = [1 if i == axis else dim for i, dim in enumerate(x.shape) if keep or i != axis]

    def key(*index: Any) -> Any:
        behind = index[axis + 1 :] if keep else index[axis:]
        order = _order(x(*index[:axis], tap, *behind), largest=largest).astype("int64")
        place = tirx.const(_PLACES, "int64") - tap if largest else tap
        return order * tirx.const(_PLACES + 1, "int64") + place

    reduce = te.max if largest else te.min
    keys = te.compute(shape, lambda *index: reduce(key(*index), axis=tap), name="keys")

    def place(*index: Any) -> Any:
        low = keys(*index) & tirx.const(_PLACES, "int64")
        return tirx.const(_PLACES, "int64") - low if largest else low

    return te.compute(shape, place, name="arg")


def _order(value: Any, *, largest: bool) -> Any:
    """A number of 32 bits that is larger where the value is; of NaN the largest, or the least, of all."""
    if not is_float(str(value.ty.dtype)):
        return value.astype("int32")
    bits = tirx.reinterpret("int32", value.astype("float32"))
    size = bits & tirx.const(_MOST, "int32")
    negative = tirx.Select(bits < 0, bits ^ tirx.const(_MOST, "int32"), bits)
    order = tirx.Select(size == 0, tirx.const(0, "int32"), negative)
    return tirx.Select(size > _INFINITY, tirx.const(_MOST if largest else -_MOST - 1, "int32"), order)


PLACES_BY_KEYS = dict.fromkeys(("relax.argmax", "relax.argmin"), partial(_place, by_keys=True))
"""For GPUs: a reduction of pairs has no template there."""
PLACES = {"relax.argmax": _place, "relax.argmin": _place}
