"""Modules built for their numbers alone, in the least time: with as little of LLVM's work as there is."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["machine_of", "target"]


def target() -> Any:
    """A CPU with FMA and 16-bit conversions, at level 0: what passes do is not seen in the code of plain loops."""
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2, "opt-level": 0})


def machine_of(executable: Any) -> Any:
    """The virtual machine of what `relax.build` gives, on a library as in an artifact.

    TVM's JIT would make machine code at LLVM's level 2 whatever the target says, in thrice the time of level 0.
    """
    import tvm
    from tvm import relax

    if not any(part.kind == "llvm" for part in executable.mod.imports):  # views alone: nothing to make code of
        return relax.VirtualMachine(executable, tvm.cpu())
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library.so"
        executable.export_library(str(library), fcompile=_link)
        return relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())


def _link(out: str, objects: list[str], options: Any = None, **_: Any) -> None:
    """What is not in the objects is in this process: libm, and TVM."""
    subprocess.run(["ld", "-shared", "-o", out, *objects, *(options or [])], check=True)
