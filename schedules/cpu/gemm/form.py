"""A contraction rewritten as a batched GEMM: blocks `panel` (packed operand), `core` and `out`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import s_tir, tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes, loop_nest
from relaxc.schedules.ir.contraction import Contraction
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, SBlock, Size, Stmt, Var

__all__ = ["Tile", "gemm_form"]


@dataclass(frozen=True)
class Tile:
    """What the rewriting needs to know of a template's tile.

    m and n are padded to multiples of `m` and `n`; with `packed`, the right operand is copied into panels
    `[b, k, n]`, zero beyond its end. Rows beyond m's end repeat the last one: they are never written.
    """

    m: int
    n: int
    packed: bool


_Right = Callable[[Expr, Expr, Expr], Expr]
"""The right operand's element at (b, k, column)."""


def gemm_form(func: PrimFunc, c: Contraction, tile: Tile) -> PrimFunc:
    """Return `func` with its contraction `c` as `panel`, `core` and `out`; what else it has stays behind them.

    `core[b, m, n] += left(b, min(m, M - 1), k) * panel[b, k, n]` and `out` writes `core` through the one
    elementwise consumer of the result, where there is one.
    """
    batch, m, n = c.size(c.b), c.size(c.m), c.size(c.n)
    padded_m, padded_n = _round_up(m, tile.m), _round_up(n, tile.n)
    core = tirx.decl_buffer((tir.size(batch), tir.size(padded_m), tir.size(padded_n)), c.dtype, "core", scope="local")
    nests, buffers = [], [core]
    right = _right(c, n, padded_n)
    if tile.packed:
        panel = tirx.decl_buffer((tir.size(batch), tir.size(c.size(c.k)), tir.size(padded_n)), c.dtype, "panel")
        buffers.append(panel)
        nests.append(_panel(c, panel, right, batch, padded_n))
        nests.append(_core(c, core, lambda b, k, n: panel[b, k, n], batch, m, padded_m, padded_n))
    else:
        nests.append(_core(c, core, right, batch, m, padded_m, padded_n))
    consumer = _consumer(func, c)
    nests.append(_out(c, core, consumer, batch, m, n))
    return _with_nests(func, c, consumer, nests, buffers)


def _round_up(extent: Size, multiple: int) -> Size:
    if isinstance(extent, int):
        return -(-extent // multiple) * multiple
    return tir.simplify(tirx.floordiv(extent + (multiple - 1), multiple) * multiple)


def _right(c: Contraction, n: Size, padded_n: Size) -> _Right:
    def value(b: Expr, k: Expr, column: Expr) -> Expr:
        element = tir.simplify(c.at(c.right, b=b, k=k, n=column))
        if isinstance(n, int) and n == padded_n:
            return element
        return tirx.if_then_else(column < tir.size(n), element, tirx.const(0, c.dtype))

    return value


def _panel(c: Contraction, panel: Buffer, right: _Right, batch: Size, padded_n: Size) -> Stmt:
    extents = [("b", batch, False), ("k", c.size(c.k), False), ("n", padded_n, False)]
    return loop_nest("panel", extents, lambda v: (tirx.BufferStore(panel, right(*v), v), None))


def _core(c: Contraction, core: Buffer, right: _Right, batch: Size, m: Size, padded_m: Size, padded_n: Size) -> Stmt:
    exact = isinstance(m, int) and m == padded_m

    def body(v: list[Var]) -> tuple[Stmt, Stmt]:
        b, row, column, k = v
        inside = row if exact else tirx.min(row, tir.size(m) - 1)
        left = tir.simplify(c.at(c.left, b=b, m=inside, k=k))
        at = [b, row, column]
        update = tirx.BufferStore(core, core[b, row, column] + left * right(b, k, column), at)
        return update, tirx.BufferStore(core, tirx.const(0, c.dtype), at)

    sizes = [("b", batch, False), ("m", padded_m, False), ("n", padded_n, False), ("k", c.size(c.k), True)]
    return loop_nest("core", sizes, body)


def _consumer(func: PrimFunc, c: Contraction) -> SBlock | None:
    """The block that alone reads the result, element by element; None where there is none such."""
    result = c.block.body.buffer
    if any(result.same_as(param) for param in func.params):
        return None
    readers = [r.block for r in block_realizes(func) if not r.block.same_as(c.block)]
    readers = [block for block in readers if any(load.source.same_as(result) for load in tir.loads(block))]
    if len(readers) != 1 or readers[0].init is not None or not isinstance(readers[0].body, tirx.BufferStore):
        return None
    return readers[0] if _reader_values(readers[0], c) is not None else None


def _reader_values(block: SBlock, c: Contraction) -> dict[Var, Expr] | None:
    """Each variable of a reader from the axes of `c`; None if it does not go element by element."""
    values: dict[Var, Expr] = {}
    written = c.block.body.indices
    for load in tir.loads(block.body):
        if not load.source.same_as(c.block.body.buffer):
            continue
        for index, target in zip(load.indices, written, strict=True):
            value = tir.substitute(target, c.origin)
            constant = tir.as_int(index)
            if isinstance(index, tirx.Var) and (index not in values or values[index] is value):
                values[index] = value
            elif isinstance(index, tirx.Var):
                if not tir.same(values[index], value):
                    return None
            elif constant is None or tir.as_int(value) != constant:
                return None
    for iv in block.iter_vars:
        if iv.iter_type != tirx.IterVar.DataPar:
            return None
        if iv.var not in values:
            if tir.as_int(iv.dom.extent) != 1:
                return None
            values[iv.var] = tir.zero(iv.var)
    return values if _one_to_one(block, c, values) else None


def _one_to_one(block: SBlock, c: Contraction, values: dict[Var, Expr]) -> bool:
    """Whether the reader's variables run over exactly the elements of the result."""
    spatial = [iv for iv in c.block.iter_vars if iv.iter_type == tirx.IterVar.DataPar]
    real = [iv for iv in spatial if tir.as_int(iv.dom.extent) != 1]
    own = [iv for iv in block.iter_vars if tir.as_int(iv.dom.extent) != 1]
    if len(real) != len(own):
        return False
    for iv in own:
        source = [s for s in real if tir.same(c.origin[s.var], values[iv.var])]
        if len(source) != 1 or not tir.same(source[0].dom.extent, iv.dom.extent):
            return False
    return True


def _out(c: Contraction, core: Buffer, consumer: SBlock | None, batch: Size, m: Size, n: Size) -> Stmt:
    store = c.block.body
    reader = {} if consumer is None else _reader_values(consumer, c)

    def body(v: list[Var]) -> tuple[Stmt, None]:
        element = core[v[0], v[1], v[2]].astype(str(store.buffer.dtype))
        place = {"b": v[0], "m": v[1], "n": v[2]}
        if consumer is None:
            indices = [c.at(tir.substitute(index, c.origin), **place) for index in store.indices]
            return tirx.BufferStore(store.buffer, element, indices), None
        to_axes = tir.replace_loads(consumer.body, store.buffer, lambda _: element)
        values = {var: c.at(value, **place) for var, value in (reader or {}).items()}
        return tir.simplify_store(tir.substitute(to_axes, values)), None

    return loop_nest("out", [("b", batch, False), ("m", m, False), ("n", n, False)], body)


def _with_nests(
    func: PrimFunc, c: Contraction, consumer: SBlock | None, nests: list[Stmt], buffers: list[Buffer]
) -> PrimFunc:
    """`func` with the nest of the last of `c` and its consumer replaced by `nests`, and that of the first removed."""
    root = func.body.block
    gone = [c.block] if consumer is None else [c.block, consumer]
    body: list[Stmt] = []
    for nest in tir.statements(root.body):
        inside = [r.block for r in tir.collect(nest, s_tir.SBlockRealize)]
        if any(block.same_as(gone[-1]) for block in inside):
            body.extend(nests)
        elif not any(block.same_as(gone[0]) for block in inside):
            body.append(nest)
    dropped = None if consumer is None else c.block.body.buffer
    kept = [b for b in root.alloc_buffers if dropped is None or not b.same_as(dropped)]
    block = s_tir.SBlock([], [], [], "root", tirx.stmt_seq(*body), alloc_buffers=[*kept, *buffers])
    return func.with_body(s_tir.SBlockRealize([], True, block))
