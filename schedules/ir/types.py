"""TVM's objects by the names that annotations give them; nothing of TVM is imported at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = [
    "Buffer",
    "BufferRegion",
    "BufferStore",
    "Expr",
    "For",
    "IterVar",
    "LoopRV",
    "Node",
    "PrimFunc",
    "SBlock",
    "SBlockRV",
    "SBlockRealize",
    "Size",
    "Stmt",
    "Target",
    "Tensor",
    "TensorLoad",
    "TirSchedule",
    "Var",
]

if TYPE_CHECKING:
    from tvm.ir import Expr, TensorLoad
    from tvm.s_tir import SBlock, SBlockRealize
    from tvm.s_tir import Schedule as TirSchedule
    from tvm.s_tir.schedule import LoopRV, SBlockRV
    from tvm.target import Target
    from tvm.te import Tensor
    from tvm.tirx import Buffer, BufferRegion, BufferStore, For, IterVar, PrimFunc, Stmt, Var
else:
    # Templates are listed, and plans are read, where TVM is not loaded.
    Buffer = BufferRegion = BufferStore = Expr = For = IterVar = LoopRV = PrimFunc = SBlock = Any
    SBlockRV = SBlockRealize = Stmt = Target = Tensor = TensorLoad = TirSchedule = Var = Any

Node: TypeAlias = "Expr | Stmt | SBlock"
"""What may be walked and rewritten: an expression, a statement, or a block."""

Size: TypeAlias = "int | Expr"
"""An extent: an int where it is constant, an expression where it is symbolic."""
