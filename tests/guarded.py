"""Arrays beside pages that nobody may touch: a kernel that reads or writes past one dies, whatever lies there else."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Literal

import numpy as np
import tvm

__all__ = ["guarded", "guarded_tensor"]

_ALIGNMENT = 64
"""What TVM asks of a tensor's address, in bytes: so many past the end at most are not noticed."""

_libc = ctypes.CDLL(None, use_errno=True)


def guarded(array: np.ndarray[Any, Any], side: Literal["start", "end"]) -> np.ndarray[Any, Any]:
    """A copy of `array` with a page before its start, or after its end, that must not be touched."""
    page = mmap.PAGESIZE
    padded = -(-max(array.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
    inside = -(-padded // page) * page
    region = mmap.mmap(-1, inside + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for at in (address, address + page + inside):
        if _libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = page if side == "start" else page + inside - padded
    copy = np.frombuffer(region, dtype=array.dtype, count=array.size, offset=start).reshape(array.shape)
    copy[...] = array
    return copy


def guarded_tensor(array: np.ndarray[Any, Any], side: Literal["start", "end"]) -> Any:
    """`guarded` as a tensor of TVM's on the same memory; a plain one of no elements, which has no address.

    Numpy has no DLPack form of what ml_dtypes adds, bfloat16 above all: those are their bits, seen as the dtype.
    """
    if not array.size:
        return tvm.runtime.tensor(array)
    if array.dtype.kind in "fiu":
        return tvm.runtime.from_dlpack(guarded(array, side))
    bits = guarded(np.ascontiguousarray(array).view(f"uint{8 * array.dtype.itemsize}"), side)
    return tvm.runtime.from_dlpack(bits)._create_view(array.shape, str(array.dtype))
