"""The functions that a program calls and does not hold itself: all are the small runtime's, or it is refused."""

from __future__ import annotations

import mmap
import re
from collections.abc import Container, Iterable
from functools import lru_cache
from typing import Any

from relaxc.service import tvm_libraries
from relaxc.service.errors import UnsupportedModel

__all__ = ["check_outside_functions"]

_GLOBALS = re.compile(r"^ *Globals \(#\d+\): \[(.*)\]$", re.MULTILINE)


def check_outside_functions(executable: Any, own: Container[str]) -> None:
    """Check that TVM's runtime libraries have each function that the VM's `executable` calls and that is none of `own`.

    A process that runs an artifact has these alone: what `import tvm` registers in Python is not there. Raise
    UnsupportedModel that names those that are missing.
    """
    outside = sorted(name for name in _called(executable) if name not in own)
    missing = [name for name in outside if not _is_in_runtime(name)]
    if missing:
        raise UnsupportedModel(
            f"the runtime that runs an artifact does not have these functions: {', '.join(missing)}",
            operators={name.removeprefix("relax.run."): 1 for name in missing},
        )


def _called(executable: Any) -> Iterable[str]:
    """All functions that the bytecode names, its own too."""
    found = _GLOBALS.search(str(executable["stats"]()))
    assert found is not None, "TVM says otherwise which functions an executable calls"
    return [name.strip() for name in found[1].split(",")]


@lru_cache
def _is_in_runtime(name: str) -> bool:
    """Whether a library of the runtime has the name as a text, which it needs to register a function."""
    folder, text = tvm_libraries.runtime_folder(), name.encode() + b"\0"
    for library in (tvm_libraries.RUNTIME, tvm_libraries.EXTRA, tvm_libraries.CUDA):
        path = folder / library
        if path.is_file():
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                if data.find(text) >= 0:
                    return True
    return False
