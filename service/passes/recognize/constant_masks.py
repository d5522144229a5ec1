"""Masks that constants determine, without the copies that an exporter made of them along the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.passes.common.constants import Array
from relaxc.service.passes.common.rewrite import Scope, op_name
from relaxc.service.passes.simplify.fold_constants import COMPUTE

__all__ = ["MOST_ELEMENTS", "mask_value"]

MOST_ELEMENTS = 1 << 26
"""The largest mask that is looked at: that of 8,192 queries and as many keys."""

_ELEMENTWISE = (
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor", "logical_not", "add", "subtract", "multiply", "where", "astype",
    "broadcast_to",
)  # fmt: skip


def mask_value(expr: relax.Expr, scope: Scope) -> Array | None:
    """Return the value of `expr`, where constants determine it; axes of more than two along which it repeats are 1.

    FoldConstants leaves what is larger than what it came from, as `arange(n) <= arange(n)[:, None]` for a batch is: to
    see that it is causal, it is enough to look at one of the batch, and nothing is kept.
    """
    known = scope.constant(expr)
    if known is not None:
        return _once(known)
    call = scope.value(expr)
    name = op_name(call).removeprefix("relax.")
    if name not in _ELEMENTWISE:
        return None
    tensors = [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]
    values = [mask_value(each, scope) for each in tensors]
    operands = [each for each in values if each is not None]
    if len(operands) < len(values) or not _is_bounded(operands):
        return None
    with np.errstate(all="ignore"):  # inf and NaN are results like others
        result = COMPUTE[name](call, operands)
    return None if result is None else _once(result.reshape((1,) * (int(expr.ty.ndim) - result.ndim) + result.shape))


def _is_bounded(operands: list[Array]) -> bool:
    return math.prod(np.broadcast_shapes(*(each.shape for each in operands))) <= MOST_ELEMENTS


def _once(array: Array) -> Array:
    """The array with one element of each axis before the last two along which all are equal."""
    for axis in range(array.ndim - 2):
        first: Any = array.take([0], axis) if array.shape[axis] else array
        array = first if (first == array).all() else array
    return array
