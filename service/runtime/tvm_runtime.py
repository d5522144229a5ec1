"""What a session needs of TVM, through tvm_ffi alone: its libraries, tensors on devices, the virtual machine.

`import tvm` is not needed, which takes half a second; `relaxc-runtime` has the libraries alone. Where it is imported
too, before or after, both use the same libraries.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import tvm_ffi

from relaxc.service.tvm_libraries import EXTRA, RUNTIME, runtime_folder

__all__ = ["CPU", "VirtualMachine", "copied_to", "copy", "empty", "function", "load_libraries", "viewed", "wait"]

CPU = tvm_ffi.device("cpu")

_POOLED = 2
"""VirtualMachine.POOLED_ALLOCATOR of TVM's."""


@lru_cache(maxsize=1)
def load_libraries() -> None:
    """Register what TVM's runtime has; sorting and random numbers are in the second library."""
    folder = runtime_folder()
    ctypes.CDLL(str(folder / RUNTIME), ctypes.RTLD_GLOBAL)
    if (folder / EXTRA).is_file():
        ctypes.CDLL(str(folder / EXTRA), ctypes.RTLD_GLOBAL)


@lru_cache
def function(name: str) -> Any:
    """Return a function that TVM's runtime registers."""
    load_libraries()
    return tvm_ffi.get_global_func(name)


def empty(shape: Sequence[int], dtype: str, device: tvm_ffi.Device = CPU) -> tvm_ffi.Tensor:
    """Return a tensor of TVM's own memory; nothing is written there."""
    sizes = tvm_ffi.Shape(tuple(int(size) for size in shape))
    made: tvm_ffi.Tensor = function("runtime.TVMTensorAllocWithScope")(sizes, tvm_ffi.dtype(dtype), device, None)
    return made


def copy(source: tvm_ffi.Tensor, target: tvm_ffi.Tensor) -> None:
    """Copy all of a tensor to one of the same shape, from device to device."""
    function("runtime.TVMTensorCopyFromTo")(source, target)


def copied_to(tensor: tvm_ffi.Tensor, device: tvm_ffi.Device) -> tvm_ffi.Tensor:
    """Return a copy on `device`."""
    made = empty(tensor.shape, str(tensor.dtype), device)
    copy(tensor, made)
    return made


def viewed(tensor: tvm_ffi.Tensor, dtype: str) -> tvm_ffi.Tensor:
    """Return the same memory as a tensor of another dtype of the same size."""
    shape = tvm_ffi.Shape(tuple(tensor.shape))
    made: tvm_ffi.Tensor = function("runtime.TVMTensorCreateView")(tensor, shape, tvm_ffi.dtype(dtype), 0)
    return made


def wait(device: tvm_ffi.Device) -> None:
    """Return when all that was started on `device` is done."""
    function("runtime.Device_StreamSync")(device, 0)


class VirtualMachine:
    """The virtual machine of a loaded library, with a pool of memory on `device`; shapes are computed on the CPU.

    Raise AttributeError where the library has none.
    """

    def __init__(self, library: Any, device: tvm_ffi.Device) -> None:
        self.module = library["vm_load_executable"]()
        devices = [device] if device.dlpack_device_type() == CPU.dlpack_device_type() else [device, CPU]
        places = ((each.dlpack_device_type(), each.index, _POOLED) for each in devices)
        self.module["vm_initialization"](*(number for place in places for number in place))

    def __getitem__(self, name: str) -> Any:
        return self.module[name]

    def set_instrument(self, instrument: Any) -> None:
        """Have `instrument` called around each call that a program makes; None ends it."""
        self.module["set_instrument"](instrument)
