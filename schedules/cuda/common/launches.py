"""The statements of a PrimFunc that run after each other, and which of them are kernels."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlockRealize

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import PrimFunc, Stmt

__all__ = ["launches", "parts"]


def parts(func: PrimFunc) -> list[Stmt]:
    """Return the statements that run one after the other, each a kernel or code of the host."""
    return tir.statements(func.body.block.body if isinstance(func.body, SBlockRealize) else func.body)


def launches(part: Stmt) -> bool:
    """Return whether a statement binds threads."""
    bound = any(loop.kind == tirx.ForKind.THREAD_BINDING for loop in tir.collect(part, tirx.For))
    return bound or any(each.attr_key == "thread_extent" for each in tir.collect(part, tirx.AttrStmt))
