"""TVM's CUDA runtime in this process: loaded where an artifact needs it, or refused with what is missing."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import lru_cache
from pathlib import Path

from relaxc.service.errors import MachineMismatch
from relaxc.service.runtime.tvm_runtime import load_libraries
from relaxc.service.tvm_libraries import CUDA, runtime_folder

__all__ = ["cuda_runtime", "load_runtime", "require_memory"]


def require_memory(weights_bytes: int, run_bytes: int, device: int) -> None:
    """Raise MachineMismatch where the GPU has less free memory than the weights and a run's own values take."""
    free = _free_bytes(device)
    needed = weights_bytes + run_bytes
    if free is not None and needed > free:
        what = f"{_mib(needed)} of the GPU's memory ({_mib(weights_bytes)} of weights, {_mib(run_bytes)} for a run)"
        raise MachineMismatch(
            f"this artifact needs {what}; {_mib(free)} are free",
            missing=[what],
            remedy="End other programs on the GPU, or use one with more memory.",
        )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"


def _free_bytes(device: int) -> int | None:
    """The free memory of a GPU; None where the runtime does not say."""
    runtime, free, total = cuda_runtime(), ctypes.c_size_t(), ctypes.c_size_t()
    if runtime.cudaSetDevice(device) or runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
        return None
    return free.value


@lru_cache(maxsize=1)
def load_runtime() -> None:
    """Register TVM's CUDA device and module loader, which `import tvm` does not. Raise MachineMismatch.

    The library needs the driver's `libcuda.so.1` and `libcudart.so.13`, which a system has or a wheel
    (`nvidia-cuda-runtime`, which torch brings along).
    """
    load_libraries()
    path = runtime_folder() / CUDA
    _library("libcuda.so.1", "the NVIDIA driver (libcuda.so.1 cannot be loaded)")
    cuda_runtime()
    _library(str(path), f"TVM's CUDA runtime ({CUDA} cannot be loaded)")


@lru_cache(maxsize=1)
def cuda_runtime() -> ctypes.CDLL:
    """Return the CUDA runtime library of this process. Raise MachineMismatch where there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    found = [str(path) for folder in folders for path in sorted(folder.glob("*/lib/libcudart.so.13"))]
    for name in ("libcudart.so.13", *found):
        try:
            return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise _lacks("the CUDA 13 runtime (libcudart.so.13; `pip install nvidia-cuda-runtime` has it)")


def _library(name: str, what: str) -> None:
    try:
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise _lacks(f"{what}: {error}") from error


def _lacks(what: str) -> MachineMismatch:
    return MachineMismatch(f"a CUDA artifact needs {what}", missing=[what])
