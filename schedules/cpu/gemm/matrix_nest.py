"""Loops of a product by tile registers (AMX): a call in the place of those that sum up a tile."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range

from relaxc.schedules.cpu.common.matrix_code import configuration, declarations, product, release, rows_by_panel
from relaxc.schedules.cpu.common.tile_registers import MATRIX, rows_of
from relaxc.schedules.cpu.gemm.packed_plan import Layout
from relaxc.schedules.dots import Dot
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import call, sequence, with_code
from relaxc.schedules.ir.types import Expr, For, PrimFunc, SBlockRealize, Stmt, Var
from relaxc.schedules.template import Parameters

__all__ = ["by_registers"]


def by_registers(
    func: PrimFunc, task: Var, tile: Var, row: Var, block: str, layout: Layout, dot: Dot, chosen: Parameters
) -> PrimFunc:
    """Return `func` with the loop of `row`, which sums up a `tile` of `block`, as a call on registers of the `task`.

        for task in parallel: … for m in rows: for n, k: C[m, n] += A[m, k] * P[k, n]
        →
        for task in parallel: configure; … product(C, P, A, A[rows / matrix :]); release

    A tile that ends past the last row has registers of fewer rows while it is computed, and one behind it is not.
    """
    calls = _Calls(layout, dot, chosen)

    def replaced(loop: For) -> Stmt:
        if loop.loop_var.same_as(row):
            (realize,) = (each for each in tir.collect(loop, s_tir.SBlockRealize) if each.block.name_hint == block)
            return calls.tile(realize, tile, [each.loop_var for each in tir.collect(loop, tirx.For)])
        if loop.loop_var.same_as(task):
            body = sequence(calls.configured(chosen["rows"]), loop.body, calls.one(*release()))
            return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)
        return loop

    root = tvm_ffi.structural_map(func.body, (tirx.For, replaced)).block
    body = with_code(declarations(dot) + "".join(calls.code.values()), root.body)
    made = s_tir.SBlock([], root.reads, root.writes, root.name_hint, body, alloc_buffers=root.alloc_buffers)
    return func.with_body(s_tir.SBlockRealize([], True, made))


class _Calls:
    """What a product calls, with the code of that by name."""

    def __init__(self, layout: Layout, dot: Dot, chosen: Parameters) -> None:
        self.layout, self.dot = layout, dot
        self.rows, self.matrix, self.tiles = chosen["rows"], chosen[MATRIX], chosen["tiles"]
        self.each = -(-self.rows // self.matrix)
        self.sums = self.matrix, layout.vectors
        self.code: dict[str, str] = {}

    def one(self, name: str, code: str, *arguments: Expr) -> Stmt:
        """Return a call of what `code` defines."""
        self.code[name] = code
        return call(name, *arguments)

    def configured(self, rows: int) -> Stmt:
        """Return the call that has registers for a tile of so many rows."""
        return self.one(*configuration(self.sums, rows_of(rows, self.each, self.matrix)))

    def tile(self, realize: SBlockRealize, tile: Var, inner: Sequence[Var]) -> Stmt:
        """Return the block of a `tile` of the task, in the place of the loops over `inner` around that of one sum."""
        block, sums = realize.block, realize.block.body.buffer
        begin = {var: tirx.const(0, str(var.ty.dtype)) for var in inner}
        row, column = (tir.simplify(tir.substitute(value, begin)) for value in realize.iter_values[:2])
        size = self.rows, self.layout.width
        region = [Range.from_min_extent(*each) for each in zip((row, column), size, strict=True)]
        written = tirx.BufferRegion(sums, region)
        held = tirx.decl_buffer(size, str(sums.dtype), "C", scope="local", offset_factor=1)
        left, right = (load for load in tir.loads(block.body.value) if not load.source.same_as(sums))

        def element(load: Expr, first: Expr) -> Expr:
            at = dict.fromkeys((each.var for each in block.iter_vars), tir.index_const(0))
            at |= dict(zip((each.var for each in block.iter_vars), (first, column), strict=False))
            return tirx.BufferLoad(load.source, [tir.simplify(tir.substitute(index, at)) for index in load.indices])

        of_rows = [element(left, self._within(row + i * self.each)) for i in range(self.matrix)]
        steps, panel = self.layout.op.k // self.dot.k, element(right, row)
        fetched = -(-self.dot.m // self.tiles) if self.tiles > 1 else 0
        of_next = [_below(panel, tile * fetched * steps)] if fetched else []
        walk = rows_by_panel(steps, self.layout.vectors)
        pointers = map(tirx.address_of, (held[0, 0], panel, *of_rows, *of_next))
        made = self.one(*product(self.dot, self.sums, walk, self.each, fetched * self.sums[1]), *pointers)
        read = [_whole(load) for load in (left, right)]
        matched = [s_tir.MatchBufferRegion(held, written)]
        name, body = block.name_hint, self._of_rows_that_there_are(made, row)
        return s_tir.SBlockRealize([], True, s_tir.SBlock([], read, [written], name, body, match_buffers=matched))

    def _within(self, row: Expr) -> Expr:
        """The row, or the last of all where that is before it."""
        last = tirx.const(self.layout.op.m - 1, str(row.ty.dtype))
        return row if self.layout.rows == self.layout.op.m else tirx.min(row, last)

    def _of_rows_that_there_are(self, made: Stmt, row: Expr) -> Stmt:
        """The call for a tile that begins at `row`."""
        over = self.layout.op.m % self.rows
        if self.layout.rows == self.layout.op.m:
            return made
        last = sequence(self.configured(over), made, self.configured(self.rows)) if over else None
        rest = tirx.IfThenElse(row < self.layout.op.m, last, None) if over else None
        return tirx.IfThenElse(row < self.layout.op.m - over, made, rest)


def _below(panel: Expr, row: Expr) -> Expr:
    """Row `row` of the panel behind this one; what lies past the last may be fetched, too."""
    first, _, *within = panel.indices
    return tirx.BufferLoad(panel.source, [first + 1, row, *within])


def _whole(load: Expr) -> Expr:
    return tirx.BufferRegion(load.source, [Range(0, extent) for extent in load.source.shape])
