"""The library of an artifact, loaded; of one for several machines that of the part for this one."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm_ffi

from relaxc.service import machine
from relaxc.service.config import settings
from relaxc.service.errors import ArtifactCorrupt, InvalidOption
from relaxc.service.request import TargetSpec, is_utf8
from relaxc.service.runtime.pool import pool
from relaxc.service.runtime.tvm_runtime import function

__all__ = ["chosen", "failure", "first_line", "load_library"]

_BLOCK = 1 << 20
_LOADED: dict[tuple[Any, ...], Any] = {}
_NAMED: dict[Path, tuple[int, int]] = {}
"""The file, by device and inode, that the dynamic loader knows by this path."""

_OPENED: dict[tuple[int, int], int] = {}
_LOADING = threading.Lock()


def chosen(targets: Sequence[TargetSpec]) -> int:
    """Return which of an artifact's targets runs best on this machine, or is named by the setting `part`.

    Where none runs it is the first, which is then refused. Raise InvalidOption where the setting names none of several.
    """
    if len(targets) == 1:
        return 0
    names = [target.name for target in targets]
    if asked := settings().part:
        if asked not in names:
            raise InvalidOption(f"the artifact has no part {asked!r}; there are {', '.join(names)}", option="part")
        return names.index(asked)
    return machine.best_part(targets) or 0


def load_library(path: Path, extent: tuple[int, int] | None = None) -> Any:
    """Return the library at `path`, or that in it at this offset of this size, loaded. Raise ArtifactCorrupt."""
    pool()  # what is loaded from now on runs on it
    try:
        whole = path.resolve()
        if extent is not None:
            return _inside(whole, *extent)
        name = _name_of(whole)
        # TVM's loader goes by the suffix, so it is given one that it knows.
        return tvm_ffi.load_module(name) if name.endswith(".so") else _load_as_so(name)
    except (RuntimeError, OSError) as error:
        raise ArtifactCorrupt(f"{path} cannot be loaded: {first_line(error)}", path=str(path)) from error


def _load_as_so(path: str) -> Any:
    return function("ffi.Module.load_from_file.so")(path, "so")


def _name_of(path: Path) -> str:
    """What to call the file at `path` before the dynamic loader.

    It knows libraries by name: of a file that was put in the place of one that is loaded it would give that one's code.
    Such a file, or one whose name is no text, gets the name of a descriptor, which is no other file's as it is open
    until the process ends.
    """
    seen = path.stat()
    file = seen.st_dev, seen.st_ino
    with _LOADING:
        if is_utf8(path) and _NAMED.setdefault(path, file) == file:
            return str(path)
        if file not in _OPENED:
            _OPENED[file] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return f"/proc/self/fd/{_OPENED[file]}"


def _inside(path: Path, offset: int, size_bytes: int) -> Any:
    """A library within a file, loaded once a process.

    The loader takes whole files only, and knows them by name: so it is given a copy in memory, whose name is no other
    library's as long as it is open, which is until the process ends.
    """
    seen = path.stat()
    key = (seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size, offset)
    with _LOADING:
        if key not in _LOADED:
            _LOADED[key] = _load_as_so(f"/proc/self/fd/{_copied(path, offset, size_bytes)}")
        return _LOADED[key]


def _copied(path: Path, offset: int, size_bytes: int) -> int:
    """A part of a file as a file in memory, its descriptor."""
    handle = os.memfd_create(path.name, os.MFD_CLOEXEC)
    with path.open("rb") as source, os.fdopen(os.dup(handle), "wb") as copy:
        source.seek(offset)
        for start in range(0, size_bytes, _BLOCK):
            copy.write(source.read(min(_BLOCK, size_bytes - start)))
    return handle


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says that is not empty, or its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__


def failure(error: BaseException) -> str:
    """Return what a program that stopped says of it. Sizes, axes and places that are computed from the inputs' values
    are checked as it runs, and TVM has words of its own for that.
    """
    said = first_line(error)
    if found := re.search(r"input_shape\[i\] == reg \((-?\d+) vs\. (-?\d+)\)", said):
        got, want = found.groups()
        said = (
            f"a size, axis or place that is computed from the inputs' values does not fit: {got} where {want} must be"
        )
    return f"the program failed: {said}"
