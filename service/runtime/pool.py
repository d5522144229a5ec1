"""The threads that kernels run on: our own pool in place of TVM's, the one that packages have (decision 046)."""

from __future__ import annotations

import ctypes
import subprocess
from functools import lru_cache

from relaxc.service import machine
from relaxc.service.runtime.tvm_runtime import load_libraries
from relaxc.service.tvm_libraries import POOL, runtime_folder

__all__ = ["pool"]


@lru_cache(maxsize=1)
def pool() -> ctypes.CDLL | None:
    """Return the pool, started: libraries that are loaded from now on use it. None where it is not there and no
    compiler to build it either; kernels run on TVM's then.
    """
    load_libraries()  # TVM's own is registered before: the last one is used
    try:
        library = _loaded()
    except (OSError, subprocess.CalledProcessError):
        return None
    library.relaxc_pool_start(machine.cpu().cores)
    return library


def _loaded() -> ctypes.CDLL:
    packed = runtime_folder() / POOL
    if packed.is_file():
        return ctypes.CDLL(str(packed))
    from relaxc.service.runtime.pool_build import loaded

    return loaded()
