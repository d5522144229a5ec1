"""TVM's CUDA runtime: refused by name where the driver is missing."""

from __future__ import annotations

import ctypes

import pytest

from service.errors import MachineMismatch
from service.runtime import cuda


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(name: str, mode: int = 0) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    with pytest.raises(MachineMismatch, match=r"NVIDIA driver \(libcuda\.so\.1"):
        cuda.load_runtime.__wrapped__()


def test_a_missing_cuda_runtime_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def driver_alone(name: str, mode: int = 0) -> None:
        if "libcuda.so" not in name:
            raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", driver_alone)
    with pytest.raises(MachineMismatch, match=r"libcudart\.so\.13"):
        cuda.load_runtime.__wrapped__()
