"""Weights of blocked convolutions, packed at compile time: channels filled up with zeros to whole vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

__all__ = ["pack_broadcast", "pack_depthwise", "pack_weight"]

Array = np.ndarray[Any, Any]


def _fill(array: Array, axis: int, multiple: int) -> Array:
    """`array` with zeros at the end of `axis`, to a multiple of `multiple`."""
    missing = -array.shape[axis] % multiple
    widths = [(0, missing if i == axis else 0) for i in range(array.ndim)]
    return np.pad(array, widths) if missing else array


def pack_weight(weight: Array, in_lanes: int, lanes: int) -> Array:
    """`OIHW` → `OIHW[in_lanes]i[lanes]o`."""
    filled = _fill(_fill(weight, 0, lanes), 1, in_lanes)
    o, i, h, w = filled.shape
    blocks = filled.reshape(o // lanes, lanes, i // in_lanes, in_lanes, h, w)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 5, 3, 1))


def pack_depthwise(weight: Array, lanes: int) -> Array:
    """`C1HW` → `CHW[lanes]c`."""
    filled = _fill(weight[:, 0], 0, lanes)
    c, h, w = filled.shape
    return np.ascontiguousarray(filled.reshape(c // lanes, lanes, h, w).transpose(0, 2, 3, 1))


def pack_broadcast(array: Array, channels: int, lanes: int) -> relax.Expr | None:
    """A constant that broadcasts to `NCHW` and varies over channels only, in blocked form."""
    shape = (1,) * (4 - array.ndim) + array.shape
    if shape != (1, channels, 1, 1) or array.dtype != np.float32:
        return None
    filled = _fill(array.reshape(channels), 0, lanes)
    return relax.const(filled.reshape(1, -1, 1, 1, lanes))
