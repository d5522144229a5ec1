"""Between numpy, DLPack and TVM: without a copy where the memory is fit for it, with one where it is not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi

from service.errors import InputType

__all__ = [
    "ALIGN",
    "Array",
    "Copies",
    "Extent",
    "as_tensor",
    "extent",
    "numpy_dtype",
    "numpy_view",
    "owned_arrays",
    "owned_tensors",
    "wrap_numpy",
]

ALIGN = 64
"""Bytes. TVM's kernels may use loads that need it (kAllocAlignment)."""

Array = np.ndarray[Any, Any]
Extent = tuple[int, int]
"""First address and the one after the last."""

Copies = dict[str, tvm.runtime.Tensor]
"""Copies of inputs by name, which the next call with the same shapes overwrites."""

_SMALL_ELEMENTS = 16 << 10
_DLPACK = (1, 0)
_ON_HOST = (1, 3)  # kDLCPU, kDLCUDAHost


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a dtype of a signature; bfloat16 is ml_dtypes'."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


class _Memory:
    """A TVM tensor on the host as numpy's array interface describes it; it lives as long as the array does."""

    def __init__(self, tensor: tvm.runtime.Tensor) -> None:
        self.tensor = tensor
        raw = _raw_dtype(str(tensor.dtype))
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": None if tensor.is_contiguous() else tuple(n * raw.itemsize for n in tensor.strides),
            "typestr": raw.str,
            "version": 3,
        }


def _raw_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(np.uint16) if name == "bfloat16" else np.dtype(name)


def numpy_view(tensor: tvm.runtime.Tensor) -> Array:
    """Return a writable array of the same memory, which is the host's; strides are kept."""
    array = np.asarray(_Memory(tensor))
    return array.view(ml_dtypes.bfloat16) if str(tensor.dtype) == "bfloat16" else array


def wrap_numpy(array: Array) -> tvm.runtime.Tensor:
    """Return a row-major array aligned to 64 bytes as a TVM tensor of the same memory; it may be read-only."""
    if array.dtype == ml_dtypes.bfloat16:  # DLPack through numpy has no bfloat16
        raw: Any = tvm_ffi.from_dlpack(array.view(np.uint16).__dlpack__(max_version=_DLPACK))
        return raw._create_view(array.shape, "bfloat16")
    return tvm_ffi.from_dlpack(array.__dlpack__(max_version=_DLPACK))


def as_tensor(name: str, value: Any, dtype: str, copies: Copies) -> tvm.runtime.Tensor:
    """Return the value as a row-major tensor aligned to 64 bytes: itself where it is so already and on the host, else a
    copy.

    Takes numpy arrays and whatever speaks DLPack; a tensor on a GPU stays there. A copy goes into that which `copies`
    has under the name, if it is of the same shape, and is kept there. Raise InputType.
    """
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        if value.dtype != numpy_dtype(dtype):
            raise _wrong_dtype(name, str(value.dtype), dtype)
        if value.flags.c_contiguous and value.__array_interface__["data"][0] % ALIGN == 0:
            return wrap_numpy(value)
        return _copy(name, value, dtype, copies)
    return _from_dlpack(name, value, dtype, copies)


def _from_dlpack(name: str, value: Any, dtype: str, copies: Copies) -> tvm.runtime.Tensor:
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        raise InputType(
            f"input {name!r} is a {type(value).__name__}; it takes numpy arrays and tensors that speak DLPack",
            name=name,
        )
    try:
        tensor = value if isinstance(value, tvm.runtime.Tensor) else tvm_ffi.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputType(f"input {name!r} cannot be read through DLPack: {error}", name=name) from error
    if str(tensor.dtype) != dtype:
        raise _wrong_dtype(name, str(tensor.dtype), dtype)
    if tensor.is_contiguous() and tensor.data_ptr() % ALIGN == 0:
        return tensor
    if tensor.device.dlpack_device_type() not in _ON_HOST:
        raise InputType(f"input {name!r} is on {tensor.device} and neither row-major nor aligned", name=name)
    return _copy(name, numpy_view(tensor), dtype, copies)


def _copy(name: str, array: Array, dtype: str, copies: Copies) -> tvm.runtime.Tensor:
    tensor = copies.get(name)
    if tensor is None or tuple(tensor.shape) != array.shape:
        tensor = copies[name] = tvm.runtime.empty(array.shape, dtype)
    numpy_view(tensor)[...] = array
    return tensor


def _wrong_dtype(name: str, found: str, wanted: str) -> InputType:
    return InputType(f"input {name!r} is {found}, it takes {wanted}", name=name, dtype=found, wanted=wanted)


def extent(tensor: tvm.runtime.Tensor) -> Extent:
    """Return the addresses that a row-major tensor takes up."""
    start = tensor.data_ptr()
    return start, start + tensor.numel() * numpy_dtype(str(tensor.dtype)).itemsize


def owned_arrays(tensors: Iterable[tvm.runtime.Tensor], shared: Iterable[Extent]) -> list[Array]:
    """Return the tensors as arrays that belong to the caller alone.

    The memory of a large one is handed over, unless it overlaps `shared` (inputs and weights, which a model may
    return as they are) or one before it. Small ones are copied, as they may be constants inside the library.
    """
    taken, arrays = list(shared), []
    for tensor in tensors:
        if tensor.device.dlpack_device_type() not in _ON_HOST:
            arrays.append(tensor.numpy())
        elif tensor.numel() <= _SMALL_ELEMENTS:
            arrays.append(_small_copy(tensor))
        else:
            arrays.append(_handed_over(tensor, taken))
    return arrays


def owned_tensors(
    tensors: Iterable[tvm.runtime.Tensor], shared: Iterable[Extent], device: tvm.runtime.Device
) -> list[tvm.runtime.Tensor]:
    """Return the tensors on `device`, with a copy of what overlaps `shared` or one before it, or is elsewhere."""
    taken, owned = list(shared), []
    for tensor in tensors:
        start, end = extent(tensor)
        apart = not any(start < other_end and other < end for other, other_end in taken)
        owned.append(tensor if apart and tensor.device == device else tensor.copyto(device))
        taken.append((start, end))
    return owned


def _small_copy(tensor: Any) -> Array:
    if tensor.dtype == "bfloat16":
        return np.from_dlpack(tensor._create_view(tensor.shape, "uint16")).copy().view(ml_dtypes.bfloat16)
    return np.from_dlpack(tensor).copy()


def _handed_over(tensor: tvm.runtime.Tensor, taken: list[Extent]) -> Array:
    start, end = extent(tensor)
    array = numpy_view(tensor)
    if any(start < other_end and other < end for other, other_end in taken):
        return array.copy()
    taken.append((start, end))
    return array
