"""The module between FuseOps and FuseTIR, kept for who emits a fused kernel anew by another plan."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule

__all__ = ["KeepUnfused"]


@tvm.transform.module_pass(opt_level=0, name="KeepUnfused")
class KeepUnfused:
    """Change nothing, and add the module to `kept`."""

    def __init__(self, kept: list[Any]) -> None:
        self.kept = kept

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module unchanged, and keep it."""
        self.kept.append(module)
        return module
