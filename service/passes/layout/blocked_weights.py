"""Constants that images are combined with, in blocked form: channels filled up with zeros to whole vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.passes.common.constants import constant

__all__ = ["pack_broadcast"]

Array = np.ndarray[Any, Any]


def pack_broadcast(array: Array, channels: int, lanes: int) -> relax.Expr | None:
    """Return a constant that broadcasts to `NCHW` and varies over channels only, in blocked form; else None."""
    shape = (1,) * (4 - array.ndim) + array.shape
    if shape != (1, channels, 1, 1) or array.dtype not in (np.float32, np.int32):
        return None
    filled = np.pad(array.reshape(channels), (0, -channels % lanes))
    return constant(filled.reshape(1, -1, 1, 1, lanes))
