"""Modules built for their numbers alone, in the least time: with as little of LLVM's work as there is."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

__all__ = ["machine_of", "target"]


def target() -> Any:
    """A CPU with FMA and 16-bit conversions, at level 0: what passes do is not seen in the code of plain loops."""
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2, "opt-level": 0})


def machine_of(executable: Any) -> Any:
    """The virtual machine of what `relax.build` gives for `target()`.

    It runs a library: TVM's JIT makes machine code at LLVM's level 2 whatever the target says, in thrice the time.
    """
    import tvm
    from tvm import relax

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library.so"
        executable.export_library(str(library))
        return relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
