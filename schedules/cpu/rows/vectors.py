"""Loops of vectors over a row: whole ones, and a last one that overlaps where they do not divide it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.ir.types import Buffer, Expr, Stmt, Var

__all__ = ["Vector", "filled", "folded", "in_lanes", "is_whole_sum", "loop", "summed", "vectors"]


@dataclass(frozen=True)
class Vector:
    """`lanes` elements from `start` of a step, the last `fresh` of them new; `slot` is the accumulators' index."""

    start: Callable[[Expr], Expr]
    lanes: int
    fresh: int
    slot: int


def vectors(length: int, lanes: int, unroll: int) -> list[tuple[int, list[Vector]]]:
    """Return the loops over `length` elements: how often each runs, and its vectors; `start` is of the loop's step."""
    if length < lanes:
        return [(1, [Vector(lambda _: tir.index_const(0), length, length, 0)])]
    whole = length // lanes
    unroll = min(unroll, whole)
    steps, rest = divmod(whole, unroll)

    def inside(u: int) -> Callable[[Expr], Expr]:
        return lambda step: step * (unroll * lanes) + u * lanes

    def fixed(start: int) -> Callable[[Expr], Expr]:
        return lambda _: tir.index_const(start)

    loops = [(steps, [Vector(inside(u), lanes, lanes, u) for u in range(unroll)])]
    last = [Vector(fixed((steps * unroll + u) * lanes), lanes, lanes, u) for u in range(rest)]
    if length % lanes:
        last.append(Vector(fixed(length - lanes), lanes, length % lanes, rest % unroll))
    return [*loops, (1, last)] if last else loops


def loop(var: Var, extent: int, body: Stmt) -> Stmt:
    if extent == 1:
        return tir.substitute(body, {var: tir.index_const(0)})
    return tirx.For(var, tir.index_const(0), tir.size(extent), tirx.ForKind.SERIAL, body)


def filled(buffer: Buffer, value: Expr, first: int, count: int) -> Stmt:
    return in_lanes(count, lambda lane: tirx.BufferStore(buffer, value, [lane + first]))


def folded(buffer: Buffer, op: type, count: int, by: int) -> Stmt:
    """Return the statement `b[i] = op(b[i], b[i + by])` for i in `count`, as one vector."""
    return in_lanes(count, lambda lane: tirx.BufferStore(buffer, op(buffer[lane], buffer[lane + by]), [lane]))


def is_whole_sum(buffer: Buffer, count: int) -> bool:
    """Return whether `summed` takes it: `count` integers that fill a vector."""
    return not is_float(str(buffer.dtype)) and count > 1 and count & (count - 1) == 0


def summed(buffer: Buffer, count: int) -> Expr:
    """Return the sum of the first `count` elements as one operation.

    Halves onto halves (`folded`) LLVM 22 takes for too short a sum: of 8 or 16 products of bytes it makes a `vpdpbusd`,
    whose four sums it does not add.
    """
    dtype = str(buffer.dtype)
    lanes = buffer.vload([tir.index_const(0)], dtype=f"{dtype}x{count}")
    return tirx.call_llvm_pure_intrin(dtype, "llvm.vector.reduce.add", lanes)


def in_lanes(count: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """Return `body` for each of `count` lanes, as one vector."""
    if count == 1:
        return body(tir.index_const(0))
    lane = tir.fresh("lane")
    return tirx.For(lane, tir.index_const(0), tir.size(count), tirx.ForKind.VECTORIZED, body(lane))
