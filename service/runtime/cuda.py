"""TVM's CUDA runtime in this process: loaded where an artifact needs it, or refused with what is missing."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import lru_cache
from pathlib import Path

from service.errors import MachineMismatch

__all__ = ["load_runtime"]

_RUNTIME = "libtvm_runtime_cuda.so"


@lru_cache(maxsize=1)
def load_runtime() -> None:
    """Register TVM's CUDA device and module loader, which `import tvm` does not. Raise MachineMismatch.

    The library needs the driver's `libcuda.so.1` and `libcudart.so.13`, which a system has or a wheel
    (`nvidia-cuda-runtime`, which torch brings along).
    """
    import tvm

    path = Path(tvm.__file__).parent / "lib" / _RUNTIME
    _library("libcuda.so.1", "the NVIDIA driver (libcuda.so.1 cannot be loaded)")
    _cuda_runtime()
    _library(str(path), f"TVM's CUDA runtime ({_RUNTIME} cannot be loaded)")


def _cuda_runtime() -> None:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    found = [str(path) for folder in folders for path in sorted(folder.glob("*/lib/libcudart.so.13"))]
    for name in ("libcudart.so.13", *found):
        try:
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return
    raise _lacks("the CUDA 13 runtime (libcudart.so.13; `pip install nvidia-cuda-runtime` has it)")


def _library(name: str, what: str) -> None:
    try:
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise _lacks(f"{what}: {error}") from error


def _lacks(what: str) -> MachineMismatch:
    return MachineMismatch(f"a CUDA artifact needs {what}", missing=[what])
