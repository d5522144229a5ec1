"""relaxc/runtime.h through ctypes: what another language sees of the ABI."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np


class Options(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("device", c_char_p), ("sha256", c_char_p), ("threads", c_int32))


class Spec(ctypes.Structure):
    _fields_ = (("name", c_char_p), ("dtype", c_char_p), ("rank", c_size_t), ("shape", POINTER(c_char_p)))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("rank", c_size_t),
        ("shape", POINTER(c_int64)),
        ("data", c_void_p),
    )


class NativeError(Exception):
    """A call that ended with another status than OK."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Library:
    """The functions of librelaxc_runtime.so."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        for name in (
            "relaxc_error_message",
            "relaxc_status_name",
            "relaxc_target",
            "relaxc_manifest",
            "relaxc_tvm_version",
        ):
            getattr(self.c, name).restype = c_char_p
        for name in ("relaxc_input_count", "relaxc_output_count", "relaxc_result_count"):
            getattr(self.c, name).restype = c_size_t

    def check(self, status: int) -> None:
        """Raise NativeError unless the status is OK."""
        if status:
            code = self.c.relaxc_status_name(status).decode()
            raise NativeError(code, self.c.relaxc_error_message().decode("utf-8", "replace"))

    def open(self, path: Path, **options: Any) -> Session:
        """An open artifact."""
        return Session(self, path, Options(**{"size": ctypes.sizeof(Options), **options}))


class Session:
    """An open artifact, closed with its last use."""

    def __init__(self, library: Library, path: Path, options: Options) -> None:
        self.library, self.handle = library, c_void_p()
        library.check(library.c.relaxc_open(str(path).encode(), byref(options), byref(self.handle)))

    def __del__(self) -> None:
        self.library.c.relaxc_close(self.handle)

    def specs(self, kind: str) -> list[tuple[str, str, list[str]]]:
        """Name, dtype and shape of each tensor of `input` or `output`."""
        found, c = [], self.library.c
        for index in range(getattr(c, f"relaxc_{kind}_count")(self.handle)):
            spec = Spec()
            self.library.check(getattr(c, f"relaxc_{kind}")(self.handle, c_size_t(index), byref(spec)))
            found.append((spec.name.decode(), spec.dtype.decode(), [spec.shape[i].decode() for i in range(spec.rank)]))
        return found

    def __call__(self, arrays: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """The outputs of a run, as copies."""
        rows = arrays.items() if isinstance(arrays, Mapping) else [(None, array) for array in arrays]
        tensors = (Tensor * len(arrays))(*(tensor_of(name, array) for name, array in rows))
        result = c_void_p()
        c = self.library.c
        self.library.check(c.relaxc_run(self.handle, tensors, c_size_t(len(tensors)), byref(result)))
        try:
            return dict(self._output(result, index) for index in range(c.relaxc_result_count(result)))
        finally:
            c.relaxc_result_free(result)

    def _output(self, result: c_void_p, index: int) -> tuple[str, Any]:
        tensor = Tensor()
        self.library.check(self.library.c.relaxc_result_tensor(result, c_size_t(index), byref(tensor)))
        dtype, shape = numpy_dtype(tensor.dtype.decode()), tuple(tensor.shape[i] for i in range(tensor.rank))
        size = int(np.prod(shape)) * dtype.itemsize
        return tensor.name.decode(), np.frombuffer(ctypes.string_at(tensor.data, size), dtype).reshape(shape)


def tensor_of(name: str | None, array: Any) -> Tensor:
    """The array as a relaxc_tensor, which keeps it."""
    shape = (c_int64 * array.ndim)(*array.shape)
    tensor = Tensor(
        name and name.encode(), str(array.dtype).encode(), array.ndim, shape, array.__array_interface__["data"][0]
    )
    tensor.kept = array, shape
    return tensor


def numpy_dtype(name: str) -> Any:
    """The dtype; bfloat16 is ml_dtypes'."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
