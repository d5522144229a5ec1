"""Between numpy, DLPack and TVM: without a copy where the memory is fit for it, with one where it is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tvm_ffi

from relaxc.service.codes import FORMATS
from relaxc.service.errors import InputType
from relaxc.service.runtime.tvm_runtime import CPU, copied_to, empty, viewed

__all__ = [
    "ALIGN",
    "Array",
    "Copies",
    "Extent",
    "aligned_copy",
    "as_tensor",
    "extent",
    "is_fit",
    "is_negated",
    "item_bytes",
    "numpy_dtype",
    "numpy_view",
    "on_host",
    "owned_arrays",
    "owned_tensors",
    "shaped",
    "wrap_numpy",
]

ALIGN = 64
"""Bytes. TVM's kernels may use loads that need it (kAllocAlignment)."""

Array = np.ndarray[Any, Any]
Extent = tuple[int, int]
"""First address and the one after the last."""

Copies = dict[str, tvm_ffi.Tensor]
"""Copies of inputs by name, which the next call with the same shapes overwrites."""

_SMALL_ELEMENTS = 16 << 10
_DLPACK = (1, 0)
_ON_HOST = (1, 3)  # kDLCPU, kDLCUDAHost
_RAW = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}
"""Dtypes that numpy has not, nor DLPack through it, and those of their bits."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a dtype of a signature, or of its codes; bfloat16 and these are ml_dtypes'."""
    return _other(name) if name == "bfloat16" or name in FORMATS else np.dtype(name)


@lru_cache
def _other(name: str) -> np.dtype[Any]:
    """What numpy has no dtype for; the package is asked for where there are such inputs or outputs alone."""
    try:
        import ml_dtypes
    except ImportError as error:
        remedy = "pip install ml_dtypes"
        raise InputType(
            f"arrays of {name} need the package ml_dtypes, which is not installed", remedy=remedy
        ) from error
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def item_bytes(name: str) -> int:
    """Return the size of an element of a dtype of a signature."""
    return _raw_dtype(name).itemsize


class _Memory:
    """A TVM tensor on the host as numpy's array interface describes it; it lives as long as the array does."""

    def __init__(self, tensor: tvm_ffi.Tensor) -> None:
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
    return np.dtype(_RAW.get(name, name))


def numpy_view(tensor: tvm_ffi.Tensor) -> Array:
    """Return a writable array of the same memory, which is the host's; strides are kept."""
    array = np.asarray(_Memory(tensor))
    return array.view(_other("bfloat16")) if str(tensor.dtype) == "bfloat16" else array


def wrap_numpy(array: Array, dtype: str | None = None) -> tvm_ffi.Tensor:
    """Return a row-major array aligned to 64 bytes as a TVM tensor of the same memory; it may be read-only.

    With a `dtype` the array holds elements of that size, whatever it calls them.
    """
    name = dtype or array.dtype.name
    if name in _RAW:
        return viewed(tvm_ffi.from_dlpack(array.view(_RAW[name]).__dlpack__(max_version=_DLPACK)), name)
    return tvm_ffi.from_dlpack(array.view(np.dtype(name)).__dlpack__(max_version=_DLPACK))


def shaped(array: Array, dtype: str, shape: Sequence[int]) -> Array:
    """Return the memory of a row-major array as elements of the size of `dtype`, in this shape."""
    return array.reshape(-1).view(_raw_dtype(dtype)).reshape(shape)


def aligned_copy(array: Array, dtype: str, shape: Sequence[int]) -> tvm_ffi.Tensor:
    """Return a copy of a row-major array in aligned memory of TVM's; its elements are of the size of `dtype`."""
    tensor = empty(shape, dtype)
    if array.size:
        np.asarray(_Memory(tensor))[...] = shaped(array, dtype, shape)
    return tensor


def is_fit(array: Array) -> bool:
    """Return whether kernels may work on the array where it is: it is row-major and aligned to 64 bytes."""
    return array.flags.c_contiguous and array.__array_interface__["data"][0] % ALIGN == 0


def is_negated(value: Any) -> bool:
    """Return whether the value is a tensor of torch's that stands for the negative of its memory, as the imaginary part
    of a conjugate does; DLPack does not tell.
    """
    ask = getattr(value, "is_neg", None)
    return ask is not None and bool(ask())


def on_host(tensor: tvm_ffi.Tensor) -> bool:
    """Return whether the CPU can read and write the tensor."""
    return tensor.device.dlpack_device_type() in _ON_HOST


def as_tensor(name: str, value: Any, dtype: str, copies: Copies) -> tvm_ffi.Tensor:
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
        if value.flags.c_contiguous:
            tensor = wrap_numpy(value, dtype)
            if tensor.data_ptr() % ALIGN == 0:  # which takes longer to ask of numpy
                return tensor
        return _copy(name, value, dtype, copies)
    return _from_dlpack(name, value, dtype, copies)


def _from_dlpack(name: str, value: Any, dtype: str, copies: Copies) -> tvm_ffi.Tensor:
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        raise InputType(
            f"input {name!r} is a {type(value).__name__}; it takes numpy arrays and tensors that speak DLPack",
            name=name,
        )
    try:
        if is_negated(value):
            value = value.resolve_neg()
        tensor = value if isinstance(value, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(value)
        found = str(tensor.dtype)  # raises for complex numbers
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputType(f"input {name!r} cannot be read through DLPack: {error}", name=name) from error
    if found != dtype:
        raise _wrong_dtype(name, found, dtype)
    if tensor.is_contiguous() and tensor.data_ptr() % ALIGN == 0:
        return tensor
    if not on_host(tensor):
        raise InputType(f"input {name!r} is on {tensor.device} and neither row-major nor aligned", name=name)
    return _copy(name, numpy_view(tensor), dtype, copies)


def _copy(name: str, array: Array, dtype: str, copies: Copies) -> tvm_ffi.Tensor:
    tensor = copies.get(name)
    if tensor is None or tuple(tensor.shape) != array.shape:
        tensor = copies[name] = empty(array.shape, dtype)
    numpy_view(tensor)[...] = array
    return tensor


def _wrong_dtype(name: str, found: str, wanted: str) -> InputType:
    return InputType(f"input {name!r} is {found}, it takes {wanted}", name=name, dtype=found, wanted=wanted)


def extent(tensor: tvm_ffi.Tensor) -> Extent:
    """Return the addresses that a row-major tensor takes up."""
    start = tensor.data_ptr()
    return start, start + tensor.numel() * item_bytes(str(tensor.dtype))


def owned_arrays(tensors: Iterable[tvm_ffi.Tensor], shared: Iterable[Extent]) -> list[Array]:
    """Return the tensors as arrays that belong to the caller alone.

    The memory of a large one is handed over, unless it overlaps `shared` (inputs and weights, which a model may
    return as they are) or one before it. Small ones are copied, as they may be constants inside the library.
    """
    taken, arrays = list(shared), []
    for tensor in tensors:
        if not on_host(tensor):
            arrays.append(numpy_view(copied_to(tensor, CPU)))
        elif tensor.numel() <= _SMALL_ELEMENTS:
            arrays.append(_small_copy(tensor))
        else:
            arrays.append(_handed_over(tensor, taken))
    return arrays


def owned_tensors(
    tensors: Iterable[tvm_ffi.Tensor], shared: Iterable[Extent], device: tvm_ffi.Device
) -> list[tvm_ffi.Tensor]:
    """Return the tensors on `device`, with a copy of what overlaps `shared` or one before it, or is elsewhere."""
    taken, owned = list(shared), []
    for tensor in tensors:
        start, end = extent(tensor)
        apart = not any(start < other_end and other < end for other, other_end in taken)
        owned.append(tensor if apart and tensor.device == device else copied_to(tensor, device))
        taken.append((start, end))
    return owned


def _small_copy(tensor: Any) -> Array:
    if str(tensor.dtype) == "bfloat16":
        return np.from_dlpack(viewed(tensor, "uint16")).copy().view(_other("bfloat16"))
    return np.from_dlpack(tensor).copy()


def _handed_over(tensor: tvm_ffi.Tensor, taken: list[Extent]) -> Array:
    start, end = extent(tensor)
    array = numpy_view(tensor)
    if any(start < other_end and other < end for other, other_end in taken):
        return array.copy()
    taken.append((start, end))
    return array
