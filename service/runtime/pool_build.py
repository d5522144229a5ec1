"""The library of the pool, built where no package has it: once from the source that packages have, and kept."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from pathlib import Path

from relaxc.service.config import settings
from relaxc.service.tvm_libraries import POOL

__all__ = ["build_pool", "loaded"]

_SOURCES = Path(__file__).parents[1] / "packaging/native/src"
_OPTIONS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", "-Wl,--build-id=none,-z,noexecstack,-z,nodelete,-s")


def build_pool(out: Path, compiler: str) -> None:
    """Build the library. Raise OSError or CalledProcessError where there is no compiler, or none that can."""
    command = [compiler, *_OPTIONS, "-o", str(out), str(_SOURCES / "pool.cc")]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def loaded() -> ctypes.CDLL:
    """Return the library, from below the cache folder, or built for this process alone where that is not ours to use.
    Raise what `build_pool` does.
    """
    kept = settings().cache_dir / "native" / _digest() / POOL
    try:
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
                build_pool(Path(folder) / POOL, settings().cxx)
                (Path(folder) / POOL).replace(kept)
        return ctypes.CDLL(str(kept))
    except OSError:
        with tempfile.TemporaryDirectory() as folder:
            build_pool(Path(folder) / POOL, settings().cxx)
            return ctypes.CDLL(str(Path(folder) / POOL))


def _digest() -> str:
    found = hashlib.sha256("\n".join((settings().cxx, *_OPTIONS)).encode())
    for name in ("pool.h", "pool.cc"):
        found.update((_SOURCES / name).read_bytes())
    return found.hexdigest()[:32]
