"""Loops of a product whose rows are known at the call alone: register tiles of the height that suits their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from tvm import s_tir, tirx

from relaxc.schedules.cpu.common.dot_product import PAIRED
from relaxc.schedules.cpu.gemm.open_epilogue import Epilogue, rows_of
from relaxc.schedules.cpu.gemm.open_plan import Tile, layout_of, panel_bytes, tiles_of
from relaxc.schedules.dots import Dot, bits_of
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.ir.statements import block, buffer, loop, prefetch, ramp, sequence, store, vectorized
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, SBlock, Stmt
from relaxc.schedules.operators import Matmul
from relaxc.schedules.template import Declined

__all__ = ["OpenNest", "open_nest"]

_LINE_BYTES = 64

_FIRST, _SECOND = tir.index_const(0), tir.index_const(1)


def open_nest(
    func: PrimFunc, product: SBlock, last: SBlock, op: Matmul, chosen: Mapping[str, int], cpu: Cpu
) -> PrimFunc | Declined:
    """Return `func`, whose rows' number M is no constant, with `product` and the epilogue `last` as one nest.

        h = of the tiles' heights up to M the one by which all rows take the fewest cycles
        for task (block of rows, panels) in parallel:
            for panel, for tile of h rows in the block:
                first = min(tile * h, M - h)
                sums[h, width] = A[first : first + h, :] * P[panel]        in registers
                C[tile * h : first + h, panel] = epilogue(sums)

    The last tile begins earlier where it would end past the last row, so that no row is computed that is not there,
    and no address needs a condition; of what it computes twice it stores nothing. A row is summed up in the same order
    whatever the others, and the number of threads.
    """
    operands = _operands(product)
    if operands is None:
        return Declined("its operands are no parameters that lie as its plan says")
    epilogue = Epilogue.of(last, product.body.buffer)
    if epilogue is None:
        return Declined("its epilogue is not over the product's rows and columns")
    return func.with_body(OpenNest(op, operands, epilogue, chosen, cpu).body())


def _operands(product: SBlock) -> tuple[Buffer, Buffer] | None:
    """A and the panels."""
    loads = [load for load in tir.loads(product.body.value) if not load.source.same_as(product.body.buffer)]
    return (loads[0].source, loads[1].source) if len(loads) == 2 else None


class OpenNest:
    """The nest of one product."""

    def __init__(
        self, op: Matmul, operands: tuple[Buffer, Buffer], epilogue: Epilogue, chosen: Mapping[str, int], cpu: Cpu
    ) -> None:
        self.op, self.epilogue, self.chosen, self.cpu = op, epilogue, chosen, cpu
        self.data, self.weight = operands
        self.layout = layout_of(op, chosen)
        self.dot = self.layout.instruction(cpu)
        self.rows = epilogue.rows
        self.fetches = self.layout.panels * panel_bytes(self.layout) > cpu.l2_bytes // 2

    def body(self) -> Stmt:
        """Return a root block of the choice of the tiles, and the loops for each kind of these."""
        tiles = tiles_of(self.op, self.chosen, self.cpu)
        best, height = buffer("best", 2, dtype=tir.INDEX, scope="local"), tirx.Var("height", tir.INDEX)
        chosen = self._height(tiles, best), tirx.Bind(height, best[0])
        made = block("tiles", sequence(*chosen, self.of_height(tiles, height)), [best])
        return s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", made))

    def of_height(self, tiles: Sequence[Tile], height: Expr) -> Stmt:
        """Return the loops with tiles of a `height`, those of one of the `tiles`."""
        nests = [list(same) for _, same in groupby(tiles, key=lambda tile: tile.abreast)]
        found = self.tasks(nests[-1], height)
        for same in reversed(nests[:-1]):
            found = tirx.IfThenElse(height >= same[-1].rows, self.tasks(same, height), found)
        return found

    def of_panel(self, panel: Expr, loops: Stmt) -> Stmt:
        """Return the `loops` over the tiles of the panels from `panel` on, with what comes before them."""
        del panel
        return loops

    def _height(self, tiles: Sequence[Tile], best: Buffer) -> Stmt:
        """Write to `best` the rows of the tiles that take the fewest cycles, of equal ones the most, and the cycles."""
        lowest = tiles[-1]
        found = [store(best, tir.index_const(lowest.rows), _FIRST), store(best, self.rows * lowest.cycles, _SECOND)]
        for tile in reversed(tiles[:-1]):
            cycles = _quotient(self.rows, tile.rows) * tile.cycles
            taken = sequence(store(best, tir.index_const(tile.rows), _FIRST), store(best, cycles, _SECOND))
            found.append(tirx.IfThenElse(tirx.all(self.rows >= tile.rows, cycles <= best[1]), taken, None))
        return sequence(*found)

    def tasks(self, tiles: Sequence[Tile], height: Expr) -> Stmt:
        """Return the parallel loop, for tiles with as many panels abreast."""
        panels, abreast = self.chosen["panels"], tiles[0].abreast
        groups = self.layout.panels // panels
        down, each = tirx.Var("down", tir.INDEX), tirx.Var("each", tir.INDEX)
        binds = [
            tirx.Bind(down, _quotient(self.rows, height)),
            tirx.Bind(each, tirx.max(tirx.floordiv(tir.index_const(self.chosen["span"]), height), tir.index_const(1))),
        ]

        def task(at: Expr) -> Stmt:
            begin, group = tirx.floordiv(at, groups) * each, tirx.floormod(at, groups)

            def of_panels(part: Expr) -> Stmt:
                panel = group * panels + part * abreast
                down_here = tirx.min(each, down - begin)
                loops = loop(down_here, lambda tile: self._tile(tiles, height, begin, tile, panel), name="tile")
                return self.of_panel(panel, loops)

            return loop(panels // abreast, of_panels, name="panel")

        kind = tirx.ForKind.PARALLEL if self.cpu.cores > 1 else tirx.ForKind.SERIAL
        var = tir.fresh("task")
        count = _quotient(down, each) * groups
        return sequence(*binds, tirx.For(var, tir.index_const(0), count, kind, task(var)))

    def _tile(self, tiles: Sequence[Tile], height: Expr, begin: Expr, tile: Expr, panel: Expr) -> Stmt:
        """The sums of a `tile` of those from `begin` on, and what becomes of them."""
        highest, abreast, width = tiles[0].rows, tiles[0].abreast, self.layout.width
        sums = buffer("sums", highest * abreast * width, dtype=self.op.accumulate, scope="local")
        first = tirx.Var("first", tir.INDEX)
        wanted = (begin + tile) * height
        found = self.product(tiles[-1], first, panel, tile, sums)
        for each in reversed(tiles[:-1]):
            found = tirx.IfThenElse(height == each.rows, self.product(each, first, panel, tile, sums), found)
        seen = wanted - first

        def row(at: Expr) -> Stmt:
            index = at + seen
            of_panels = (
                self._columns(first + index, panel + p, sums, (index * abreast + p) * width) for p in range(abreast)
            )
            return sequence(*of_panels)

        store_rows = loop(height - seen, row, name="row")
        bind = tirx.Bind(first, tirx.min(wanted, self.rows - height))
        return block("tile", sequence(bind, found, store_rows), [sums])

    def _columns(self, row: Expr, panel: Expr, sums: Buffer, begin: Expr) -> Stmt:
        """The epilogue of a row of one panel, of which the last may have fewer columns."""
        lanes, width = self.layout.lanes, self.layout.width

        def element(at: Expr) -> Stmt:
            return self.epilogue.statement(row, panel * width + at, sums[begin + at])

        def columns(count: int) -> Stmt:
            vectors, rest = divmod(count, lanes)
            parts = (
                [loop(vectors, lambda v: vectorized(lanes, lambda lane: element(v * lanes + lane)), name="v")]
                if vectors
                else []
            )
            return sequence(*parts, *([loop(rest, lambda at: element(vectors * lanes + at), name="c")] if rest else []))

        over = self.op.n % width
        if not over:
            return columns(width)
        return tirx.IfThenElse(panel < self.layout.panels - 1, columns(width), columns(over))

    def product(self, tile: Tile, first: Expr, panel: Expr, before: Expr, sums: Buffer) -> Stmt:
        """Return `sums[i, p, n] = sum over k of A[first + i, k] * P[panel + p, k, n]` of a tile, in registers.

        `before`: the tiles of the panel that came before, which have fetched a part of what follows the panel.
        """
        lanes, vectors, steps = self.layout.lanes, tile.abreast * self.layout.vectors, self.layout.steps
        unroll = self.chosen["unroll"]
        size, dtype = tile.rows * vectors, self.op.accumulate
        tile_sums = buffer("acc", size * lanes, dtype=dtype, scope="local")

        def at(i: int, v: int) -> Expr:
            return ramp(tir.index_const((i * vectors + v) * lanes), lanes)

        zero = tirx.Broadcast(tirx.const(0, dtype), lanes)

        def step(k: Expr) -> Stmt:
            parts = []
            for i in range(tile.rows):
                left = self._left(first + i, k)
                for v in range(vectors):
                    p, within = divmod(v, self.layout.vectors)
                    added = self._added(tile_sums[at(i, v)], left, self._right(panel + p, k, within * lanes))
                    parts.append(store(tile_sums, added, at(i, v)))
            return sequence(*parts)

        def several(k: Expr) -> Stmt:
            fetched = [self._fetched(panel + tile.abreast, before * (steps // unroll) + k)] if self.fetches else []
            return sequence(*(step(k * unroll + u) for u in range(unroll)), *fetched)

        places = [(i, v) for i in range(tile.rows) for v in range(vectors)]
        begin = [store(tile_sums, zero, at(*place)) for place in places]
        end = [store(sums, tile_sums[at(*place)], at(*place)) for place in places]
        return block("product", sequence(*begin, loop(steps // unroll, several, name="k"), *end), [tile_sums])

    def _fetched(self, panel: Expr, line: Expr) -> Stmt:
        """Fetch a line of a panel, or its last; past the last panel it does nothing."""
        elements = _LINE_BYTES // self.op.element_bytes
        last = self.layout.width * self.op.k - elements
        at = tirx.min(line * elements, tir.index_const(last))
        within = [tir.index_const(0)] * (self.dot is not None)
        return prefetch(tirx.BufferLoad(self.weight, [panel, tir.index_const(0), *within, at]))

    def _left(self, row: Expr, k: Expr) -> Expr:
        """An element of A, or those of a step, in every lane."""
        lanes, dtype = self.layout.lanes, self.op.accumulate
        if self.dot is None:
            element = tirx.BufferLoad(self.data, rows_of(self.data.shape, row, k))
            return tirx.Broadcast(element.astype(dtype), lanes)
        few = tirx.BufferLoad(self.data, rows_of(self.data.shape, row, ramp(k * self.dot.k, self.dot.k)))
        return tirx.Broadcast(tirx.reinterpret(f"int{self.dot.k * bits_of(self.op.operands[0])}", few), lanes)

    def _right(self, panel: Expr, k: Expr, column: int) -> Expr:
        """A vector of the weights, each lane with the elements of a step."""
        lanes = self.layout.lanes
        if self.dot is None:
            return tirx.BufferLoad(self.weight, [panel, k, ramp(tir.index_const(column), lanes)]).astype(
                f"{self.op.accumulate}x{lanes}"
            )
        return tirx.BufferLoad(
            self.weight, [panel, k, tir.index_const(column), ramp(tir.index_const(0), lanes * self.dot.k)]
        )

    def _added(self, total: Expr, left: Expr, right: Expr) -> Expr:
        if self.dot is None:
            return total + left * right
        return _by_instruction(self.dot, total, left, right)


def _by_instruction(dot: Dot, total: Expr, left: Expr, right: Expr) -> Expr:
    """The instruction of sums, of a step's elements as int32, and of weights."""
    words, sums = f"int32x{dot.n}", f"{dot.accumulate}x{dot.n}"
    if is_float(dot.operands[0]):
        return tirx.call_pure_extern(sums, f"{PAIRED}{dot.intrinsic}", total, left, tirx.reinterpret(words, right))
    of_left = tirx.reinterpret(f"{dot.operands[0]}x{dot.n * dot.k}", left)
    return tirx.call_llvm_pure_intrin(sums, dot.intrinsic, total, of_left, right)


def _quotient(size: Expr, by: Expr | int) -> Expr:
    """How many of `by` cover `size`."""
    return tirx.floordiv(size + (by - 1), by)
