"""TVM's CUDA runtime: refused by name where the driver is missing."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from relaxc.service.errors import MachineMismatch
from relaxc.service.runtime import cuda
from relaxc.service.runtime.tvm_runtime import load_libraries


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(name: str, mode: int = 0) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    load_libraries()  # it stays; a test before this one may have done so
    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    with pytest.raises(MachineMismatch, match=r"NVIDIA driver \(libcuda\.so\.1"):
        cuda.load_runtime.__wrapped__()


class Runtime:
    """CUDA's runtime of a GPU with 100 MiB free, or of one that does not answer."""

    def __init__(self, status: int = 0) -> None:
        self.status = status

    def cudaSetDevice(self, _device: int) -> int:
        return self.status

    def cudaMemGetInfo(self, free: Any, total: Any) -> int:
        free._obj.value, total._obj.value = 100 << 20, 80 << 30
        return 0


def test_too_little_memory_is_refused_before_weights_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cuda_runtime", Runtime)
    cuda.require_memory(90 << 20, 10 << 20, 0)
    with pytest.raises(MachineMismatch, match=r"101 MiB of the GPU's memory \(90 MiB of weights, 11 MiB for a run\)"):
        cuda.require_memory(90 << 20, 11 << 20, 0)
    monkeypatch.setattr(cuda, "cuda_runtime", lambda: Runtime(1))
    cuda.require_memory(1 << 40, 0, 0)


def test_a_missingcuda_runtime_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def driver_alone(name: str, mode: int = 0) -> None:
        if "libcuda.so" not in name:
            raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", driver_alone)
    with pytest.raises(MachineMismatch, match=r"libcudart\.so\.13"):
        cuda.cuda_runtime.__wrapped__()
