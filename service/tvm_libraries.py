"""Where TVM's runtime libraries are and of which version, without loading them."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from relaxc.service.errors import MachineMismatch

__all__ = ["CUDA", "EXTRA", "FFI", "POOL", "RUNTIME", "ffi_folder", "licenses", "runtime_folder", "runtime_version"]

FFI, RUNTIME, EXTRA, CUDA = (
    f"lib{name}.so" for name in ("tvm_ffi", "tvm_runtime", "tvm_runtime_extra", "tvm_runtime_cuda")
)

POOL = "librelaxc_pool.so"
"""Our own, of the package `relaxc-runtime`."""

_OWN = Path(__file__).parent / "lib"
"""The folder of libraries in the package `relaxc-runtime`, which has no TVM beside it, with their version in a file."""


def ffi_folder() -> Path:
    """Return the folder of the package tvm_ffi. Raise MachineMismatch."""
    return _package("tvm_ffi", "apache-tvm-ffi")


def runtime_folder() -> Path:
    """Return the folder that has `libtvm_runtime.so` and those that go with it. Raise MachineMismatch."""
    return _OWN if _OWN.is_dir() else _package("tvm", "apache-tvm") / "lib"


@lru_cache(maxsize=1)
def runtime_version() -> str:
    """Return the version of TVM whose runtime this is."""
    own = _OWN / "VERSION"
    return own.read_text(encoding="utf-8").strip() if own.is_file() else metadata.version("apache-tvm")


def licenses() -> dict[str, list[Path]]:
    """Return the licence files of each distribution whose files a package may have, by its name."""
    return {name: _licenses(name) for name in ("apache-tvm", "apache-tvm-ffi")}


def _licenses(distribution: str) -> list[Path]:
    found = (Path(str(path.locate())) for path in metadata.files(distribution) or [])
    return sorted(path for path in found if path.name in ("LICENSE", "NOTICE") and path.is_file())


@lru_cache
def _package(module: str, distribution: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise MachineMismatch(f"{distribution} is not installed", remedy=f"pip install {distribution}")
    return Path(spec.submodule_search_locations[0])
