"""How much a block or a PrimFunc computes and moves: operations, iterations, bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import ir, tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import Buffer, Expr, Node, PrimFunc, SBlock, Size, Var

__all__ = ["Work", "expression_size", "is_expensive", "iterations", "work_of", "worth_parallel"]

PARALLEL_MIN_WORK = 1 << 16
"""Scalar operations under which waking the other threads (some microseconds) costs more than it saves."""

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
_LEAVES = (tirx.Var, tirx.IntImm)
_CHEAP_CALLS = frozenset({"prim.if_then_else", "prim.likely", "tirx.fabs", "tirx.reinterpret", "tirx.bitwise_and"})


def worth_parallel(work: int | None) -> bool:
    """Return whether `work` scalar operations (None for unknown) are worth waking the other threads."""
    return work is None or work >= PARALLEL_MIN_WORK


def expression_size(node: Node) -> int:
    """Return the number of operators, calls and loads in `node`."""
    return len(tir.collect(node, (*_ARITHMETIC, ir.Call, ir.TensorLoad, tirx.Cast, tirx.Select)))


def is_expensive(node: Node) -> bool:
    """Return whether `node` calls a function, such as exp, or divides floats: more than a few cycles."""
    if any(getattr(call.op, "name", "") not in _CHEAP_CALLS for call in tir.collect(node, ir.Call)):
        return True
    return any(str(div.ty.dtype).startswith("float") for div in tir.collect(node, tirx.Div))


def iterations(block: SBlock) -> Any:
    """Return how often the body of `block` runs: an int, or an expression where an extent is symbolic."""
    return tir.product([iv.dom.extent for iv in block.iter_vars])


class Work:
    """The floating-point operations and bytes of a PrimFunc: ints, or text in its symbolic sizes."""

    def __init__(self, flops: Size, size_bytes: Size, written_bytes: Size) -> None:
        self.flops = flops
        self.size_bytes = size_bytes
        self.written_bytes = written_bytes

    @property
    def known_flops(self) -> int | None:
        """The operations, if they are known at compile time."""
        return tir.as_int(self.flops)

    def to_dict(self) -> dict[str, int | str]:
        """Return all of them as JSON values; `written_bytes` are part of `bytes`."""
        return {
            "flops": _json(self.flops),
            "bytes": _json(self.size_bytes),
            "written_bytes": _json(self.written_bytes),
        }


def work_of(func: PrimFunc) -> Work:
    """Return what `func` computes and moves.

    FLOPs: each arithmetic operator and call of a stored value, on floats or integers, counts 1 an iteration.
    Bytes: each parameter once, as if every intermediate stayed in the cache; of one that is only gathered from, such
    as the table of an embedding, the elements that are loaded.
    """
    flops: Size = 0
    for realize in block_realizes(func):
        block = realize.block
        operations = sum(_operations(store.value) for store in tir.collect(block.body, tirx.BufferStore))
        flops = flops + operations * iterations(block)
    stored = [store.buffer for store in tir.collect(func.body, tirx.BufferStore)]
    moved = [(buffer, _bytes_moved(func, buffer)) for buffer in _buffers(func.params)]
    written = sum(size for buffer, size in moved if any(buffer.same_as(other) for other in stored))
    return Work(_folded(flops), _folded(sum(size for _, size in moved)), _folded(written))


def _bytes_moved(func: PrimFunc, buffer: Buffer) -> Size:
    """The bytes of `buffer`, or of its elements that plain blocks load where these are fewer."""
    whole, loaded = _bytes(buffer), 0
    for realize in block_realizes(func):
        block = realize.block
        count = sum(load.source.same_as(buffer) for load in tir.loads(block.body))
        times = iterations(block)
        touched = count or any(store.buffer.same_as(buffer) for store in tir.collect(block.body, tirx.BufferStore))
        if touched and not (count and isinstance(times, int) and isinstance(block.body, tirx.BufferStore)):
            return whole
        loaded += count * times if count else 0
    return min(whole, loaded * dtype_bytes(str(buffer.dtype))) if isinstance(whole, int) and loaded else whole


def _operations(value: Expr) -> int:
    """Operators outside of index expressions; of a Select by an index, such as of a matrix's row, the longer branch."""
    count = _written_operations(value)
    chosen = [select for select in tir.collect(value, tirx.Select) if not tir.loads(select.condition)]
    while chosen:
        outer = chosen.pop()  # children come first, so this one is inside of no other
        inside = [select for select in tir.collect(outer, tirx.Select) if not tir.loads(select.condition)]
        del chosen[len(chosen) - len(inside) + 1 :]
        longer = max(_operations(outer.true_value), _operations(outer.false_value))
        count -= _written_operations(outer) - longer
    return count


def _written_operations(value: Expr) -> int:
    indices = [index for load in tir.loads(value) for index in load.indices if not isinstance(index, _LEAVES)]
    inside = sum(map(_all_operations, indices))
    return max(0, _all_operations(value) - inside)


def _all_operations(node: Node) -> int:
    found = tir.collect(node, (*_ARITHMETIC, ir.Call))
    return sum(not isinstance(each, ir.Call) or getattr(each.op, "name", "") not in _CHEAP_CALLS for each in found)


def _buffers(params: Iterable[Var]) -> list[Buffer]:
    return [param for param in params if tirx.is_buffer_var(param)]


def _bytes(buffer: Buffer) -> Size:
    return tir.product(list(buffer.shape)) * dtype_bytes(str(buffer.dtype))


def _folded(value: Expr) -> Size:
    if isinstance(value, int):
        return value
    simple = tir.simplify(value)
    known = tir.as_int(simple)
    return simple if known is None else known


def _json(value: Size) -> int | str:
    return value if isinstance(value, int) else str(value).replace("T.int64(", "(")
