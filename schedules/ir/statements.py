"""Statements of kernels that are written as loops instead of scheduled step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import s_tir, tirx
from tvm.ir import Range

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Buffer, Expr, Size, Stmt

__all__ = [
    "block",
    "buffer",
    "call",
    "loop",
    "of_whole",
    "prefetch",
    "ramp",
    "sequence",
    "store",
    "unrolled",
    "vectorized",
    "with_code",
]

_STATUS = "int32"
"""The type of what C functions return, and of flags."""

_READ_INTO_L2 = [tirx.const(flag, _STATUS) for flag in (0, 2, 1)]
"""The arguments of `llvm.prefetch`: a read; locality 2 of 3, which is L2 on x86-64 and aarch64; not code."""

Body = Callable[[Expr], Stmt]
"""From the loop's variable to its body."""


def loop(extent: Size, body: Body, kind: int = tirx.ForKind.SERIAL, name: str = "i") -> Stmt:
    """Return `for i in range(extent): body(i)`; with an extent of 1, the body alone."""
    known = tir.as_int(extent)
    if known == 1:
        return body(tir.index_const(0))
    size = extent if known is None else tir.index_const(known)
    var = tir.fresh(name)
    return tirx.For(var, tir.index_const(0), size, kind, body(var))


def unrolled(extent: int, body: Body) -> Stmt:
    """Return a loop of which only the body is left, `extent` times."""
    return loop(extent, body, tirx.ForKind.UNROLLED, "u")


def vectorized(lanes: int, body: Body) -> Stmt:
    """Return a loop whose iterations are the lanes of vectors."""
    return loop(lanes, body, tirx.ForKind.VECTORIZED, "lane")


def sequence(*statements: Stmt) -> Stmt:
    """Return the statements after each other."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def store(target: Buffer, value: Expr, *indices: Expr) -> Stmt:
    """Return `target[indices] = value`."""
    return tirx.BufferStore(target, value, list(indices))


def buffer(name: str, *shape: int, dtype: str, scope: str = "global") -> Buffer:
    """Return a row-major buffer; `local` is for what should stay in registers, so its indices must be constants."""
    return tirx.decl_buffer(shape, dtype, name, scope=scope, layout=None)


def block(name: str, body: Stmt, buffers: list[Buffer]) -> Stmt:
    """Return `body` with the buffers that live while it runs; a thread has its own."""
    return s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], name, body, alloc_buffers=buffers))


def ramp(start: Expr, lanes: int) -> Expr:
    """Return the indices `start, start + 1, …` of a vector."""
    return tirx.Ramp(start, tir.index_const(1), lanes)


def of_whole(sources: Sequence[Buffer], body: Callable[..., Stmt]) -> Stmt:
    """Return a block of `body(of other names for the sources)`, which has pointers into all of these buffers.

    TVM cuts a buffer to the elements that statements name: what a call reads or writes behind a pointer is none.
    """
    names = [buffer(each.name, *each.shape, dtype=str(each.dtype)) for each in sources]
    regions = [tirx.BufferRegion(each, [Range(0, extent) for extent in each.shape]) for each in sources]
    matched = [s_tir.MatchBufferRegion(name, region) for name, region in zip(names, regions, strict=True)]
    made = s_tir.SBlock([], regions, regions, "of_whole", body(*names), match_buffers=matched)
    return s_tir.SBlockRealize([], True, made)


def prefetch(element: Expr) -> Stmt:
    """Fetch the line of `element`, a load, into L2; an address past the end of a buffer does nothing."""
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(element), *_READ_INTO_L2))


def call(name: str, *arguments: Expr) -> Stmt:
    """Call the function `name` of code that `with_code` brings, whose result says nothing."""
    return tirx.Evaluate(tirx.call_extern(_STATUS, name, *arguments))


def with_code(llvm: str, body: Stmt) -> Stmt:
    """Return `body`, which may call the functions of the LLVM IR `llvm`."""
    return tirx.AttrStmt(tirx.const(0, _STATUS), "pragma_import_llvm", llvm, body)
