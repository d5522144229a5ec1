"""Loops of a convolution by tile registers (AMX): a task regroups its part of the image, then calls for the sums."""

from __future__ import annotations

from tvm import s_tir, tirx

from relaxc.schedules.cpu.common.matrix_code import ROW_BYTES, ROWS, Walk, configuration, declarations, product, release
from relaxc.schedules.cpu.common.tile_registers import rows_of
from relaxc.schedules.cpu.conv.tiles_compute import REGROUPED
from relaxc.schedules.cpu.conv.tiles_plan import Tasks
from relaxc.schedules.cpu.conv.tiles_regroup import Regrouped, bound
from relaxc.schedules.dots import Dot
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.statements import (
    buffer,
    call,
    loop,
    of_whole,
    sequence,
    store,
    unrolled,
    vectorized,
    with_code,
)
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, SBlock, Size, Stmt
from relaxc.schedules.template import Declined

__all__ = ["by_tiles"]


def by_tiles(func: PrimFunc, name: str, last: str, tasks: Tasks, dot: Dot, *, parallel: bool) -> PrimFunc | Declined:
    """Return `func`, of which `regrouped`, the block `name` and its epilogue `last` are left, as loops with calls."""
    blocks = {realize.block.name_hint: realize.block for realize in block_realizes(func)}
    if set(blocks) != {REGROUPED, name, last}:
        return Declined("something that the convolution reads is computed before it")
    image, sums, result = blocks[REGROUPED], blocks[name], blocks[last]
    axes = [axis.var for axis in result.iter_vars]
    of_sums = [load for load in tir.loads(result.body.value) if load.source.same_as(sums.body.buffer)]
    if not all(tir.same_var(index, var) for load in of_sums for index, var in zip(load.indices, axes, strict=True)):
        return Declined("its epilogue reads the sums in another order")
    kernel = _Kernel(tasks, dot, image, sums, result)
    extent = tir.size(result.iter_vars[0].dom.extent) * (tasks.chunks * tasks.strides)
    kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
    nest = loop(tir.simplify(extent), kernel.task, kind, "task")
    body = with_code(declarations(dot) + "".join(kernel.code.values()), nest)
    return func.with_body(s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body)))


class _Kernel:
    """The statements of a task, with the code that they call by name."""

    def __init__(self, tasks: Tasks, dot: Dot, image: SBlock, sums: SBlock, result: SBlock) -> None:
        self.tasks, self.layout, self.dot = tasks, tasks.layout, dot
        self.image, self.sums, self.result = image, sums.body.buffer, result
        operands = [load for load in tir.loads(sums.body.value) if not load.source.same_as(self.sums)]
        (self.weight,) = (load.source for load in operands if not load.source.same_as(image.body.buffer))
        self.code: dict[str, str] = {}

    def one(self, name: str, code: str, *arguments: Expr) -> Stmt:
        """Return a call of what `code` defines."""
        self.code[name] = code
        return call(name, *arguments)

    def task(self, task: Expr) -> Stmt:
        """Return what a thread does: one batch, one chunk of the output channels, and rows of the result."""
        tasks, layout = self.tasks, self.layout
        n = tirx.floordiv(task, tasks.chunks * tasks.strides)
        chunk = tirx.floormod(tirx.floordiv(task, tasks.strides), tasks.chunks)
        row = tirx.floormod(task, tasks.strides) * tasks.height
        part = chunk * tasks.source_parts if layout.op.groups > 1 else tir.index_const(0)
        source = buffer("regrouped", tasks.source_size, dtype=str(self.image.body.buffer.dtype))
        done = [tirx.AllocBuffer(source), Regrouped(tasks, self.image, source, n, part, row).fill()]
        first = chunk * tasks.chunk_blocks
        for count, across in tasks.panels:
            size = tasks.rows * tasks.tiles * across * layout.lanes
            sums = buffer("sums", size, dtype=str(self.sums.dtype))
            each = (tasks.down, across), rows_of(tasks.rows, tasks.each, tasks.down)
            done += [tirx.AllocBuffer(sums), self.one(*configuration(*each))]

            def panel(at: Expr, first: Expr = first, across: int = across, sums: Buffer = sums) -> Stmt:
                def strip(at_strip: Expr) -> Stmt:
                    line, block = at_strip * tasks.lines, first + at * across
                    tiles = self._tiles(source, sums, block, part, at_strip, across)
                    return sequence(tiles, self._epilogue(sums, n, block, row, line, across))

                return loop(tasks.strips, strip)

            done.append(loop(count, panel))
            first += count * across
        return sequence(*done, self.one(*release()))

    def _tiles(self, source: Buffer, sums: Buffer, block: Expr, part: Expr, strip: Expr, across: int) -> Stmt:
        """Sum up a strip in a panel that begins at `block`."""
        tasks, layout = self.tasks, self.layout
        plane = layout.phases * tasks.source_rows * layout.columns.extent
        first = strip * (tasks.lines * layout.columns.extent)
        if layout.op.groups > 1:
            group = tirx.floordiv(block, layout.blocks // layout.op.groups)
            first += (group * layout.depths - part) * plane
        ahead = tasks.lines_ahead(across)

        def tile(at: Expr, image: Buffer, held: Buffer) -> Stmt:
            pixel = at * tasks.rows
            elements = [held[pixel * (across * layout.lanes)], self._behind(block, 0)]
            elements += [image[(first + pixel + i * tasks.each) * layout.depth] for i in range(tasks.down)]
            if ahead:
                elements.append(self._behind(block + across, (strip * tasks.tiles + at) * (ahead * layout.steps)))
            made = product(self.dot, (tasks.down, across), self._walk(), tasks.each, ahead, into_l2=True)
            return self.one(*made, *map(tirx.address_of, elements))

        return of_whole((source, sums), lambda *held: loop(tasks.tiles, lambda at: tile(at, *held)))

    def _behind(self, block: Expr, lines: Size) -> Expr:
        """The element so many 64 bytes behind a block's first weight; past the last one may be fetched, too."""
        at = [tir.index_const(0)] * (len(self.weight.shape) - 4)
        return tirx.BufferLoad(self.weight, [block, *at, tir.size(lines), *[tir.index_const(0)] * 2])

    def _epilogue(self, sums: Buffer, n: Expr, block: Expr, row: Expr, line: Expr, across: int) -> Stmt:
        """Compute the results of a strip, whose task begins at `row`."""
        tasks, layout, body = self.tasks, self.layout, self.result.body

        def element(y: Expr, x: Expr, v: Expr, lane: Expr) -> Stmt:
            at = (y * layout.columns.extent + x) * (across * layout.lanes) + v * layout.lanes + lane
            values = bound(self.result, (n, block + v, row + line + y, x, lane))
            value = tir.replace_loads(body.value, self.sums, lambda _: sums[at])
            indices = [tir.substitute(index, values) for index in body.indices]
            return store(body.buffer, tir.substitute(value, values), *indices)

        def one(y: Expr, x: Expr) -> Stmt:
            return unrolled(across, lambda v: vectorized(layout.lanes, lambda lane: element(y, x, v, lane)))

        def of_line(y: Expr) -> Stmt:
            made, rows = loop(layout.columns.results, lambda x: one(y, x)), layout.op.result[0]
            conditions = [line + y < tasks.height] if tasks.height % tasks.lines else []
            conditions += [row + line + y < rows] if rows % tasks.height else []
            return tirx.IfThenElse(tirx.all(*conditions), made, None) if conditions else made

        return loop(tasks.lines, of_line)

    def _walk(self) -> Walk:
        """Through the regrouped image, where a tap is always as far from the pixel, and through packed weights."""
        layout, rows, columns = self.layout, self.layout.rows, self.layout.columns
        plane = self.tasks.source_rows * columns.extent

        def offset(r: int, q: int) -> int:
            (down, y), (across, x) = rows.place(r), columns.place(q)
            return (down * columns.phases + across) * plane + y * columns.extent + x

        taps = [(r, q) for r in range(rows.taps) for q in range(columns.taps)]
        return Walk(
            layout.depths,
            tuple(offset(*tap) * ROW_BYTES for tap in taps),
            left_step=layout.phases * plane * ROW_BYTES,
            left_row=ROW_BYTES,
            right_step=ROWS * ROW_BYTES,
            right_row=ROW_BYTES,
            right_across=layout.steps * ROWS * ROW_BYTES,
        )
