"""Statements of kernels that are written as loops instead of scheduled step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import s_tir, tirx

from schedules.ir import tir

__all__ = ["block", "buffer", "loop", "ramp", "sequence", "store", "unrolled", "vectorized"]

Body = Callable[[Any], Any]
"""From the loop's variable to its body."""


def loop(extent: Any, body: Body, kind: int = tirx.ForKind.SERIAL, name: str = "i") -> Any:
    """`for i in range(extent): body(i)`; with an extent of 1, the body alone."""
    known = tir.as_int(extent)
    if known == 1:
        return body(tirx.const(0, "int64"))
    size = extent if known is None else tirx.const(known, "int64")
    var = tirx.Var(name, "int64")
    return tirx.For(var, tirx.const(0, "int64"), size, kind, body(var))


def unrolled(extent: int, body: Body) -> Any:
    """A loop of which only the body is left, `extent` times."""
    return loop(extent, body, tirx.ForKind.UNROLLED, "u")


def vectorized(lanes: int, body: Body) -> Any:
    """A loop whose iterations are the lanes of vectors."""
    return loop(lanes, body, tirx.ForKind.VECTORIZED, "lane")


def sequence(*statements: Any) -> Any:
    """The statements after each other."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def store(target: Any, value: Any, *indices: Any) -> Any:
    """`target[indices] = value`."""
    return tirx.BufferStore(target, value, list(indices))


def buffer(name: str, *shape: int, dtype: str = "float32", scope: str = "global") -> Any:
    """A row-major buffer; `local` is for what should stay in registers, so its indices must be constants."""
    return tirx.decl_buffer(shape, dtype, name, scope=scope, layout=None)


def block(name: str, body: Any, buffers: list[Any]) -> Any:
    """`body` with the buffers that live while it runs; a thread has its own."""
    return s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], name, body, alloc_buffers=buffers))


def ramp(start: Any, lanes: int) -> Any:
    """The indices `start, start + 1, …` of a vector."""
    return tirx.Ramp(start, tirx.const(1, "int64"), lanes)
