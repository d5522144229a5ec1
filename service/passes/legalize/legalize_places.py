"""Places of the largest and the smallest number: TVM's begin at the last number of the dtype, with the place -1.

argmax of a row of -∞, of 0 in uint8    →  0     it was -1
argmax of numbers and NaN               →  the first NaN, as in torch and numpy
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

from relaxc.schedules.ir.dtypes import is_float

__all__ = ["PLACES"]

_AFTER_ALL = 1 << 62
"""A place that loses every tie."""


def _place(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    (data,), keep = call.args, bool(call.attrs.keepdims)
    if str(data.ty.dtype) == "bfloat16":  # TVM builds no reduction of pairs of it
        data = builder.emit(relax.op.astype(data, "float32"))
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % data.ty.ndim
    rank = data.ty.ndim
    if call.attrs.axis is None:
        data = builder.emit(relax.op.flatten(data))
    largest = call.op.name == "relax.argmax"
    keeps_axis = keep and call.attrs.axis is not None
    found = builder.call_te(
        lambda x: _first(x, axis, keep=keeps_axis, largest=largest),
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


PLACES = {"relax.argmax": _place, "relax.argmin": _place}
