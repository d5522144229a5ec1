"""Matrix products with weights in panels, `P[N/t, K, t]`: GEMM at the speed of the multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from tvm import s_tir, tirx

from schedules.cpu.common.register_tile import blocks_around, divisors, tile_of, unrolled_steps
from schedules.hardware import Cpu, cpu_of
from schedules.ir import analysis, moves, tir
from schedules.template import Choices, Declined, Parameters, Schedule, check, including

__all__ = ["MatmulPacked"]

BLOCK = "matmul"

_MOST_TILES = 512
"""Tiles of rows in a task: more make no task better, and the space larger."""

_LEAST_DEPTH = 128
"""Steps of the depth under which the sums go to memory and back too often for what is added to them."""


@dataclass(frozen=True)
class _Shape:
    """The accumulator `[rows, columns]`, its depth and the panels' width."""

    rows: int
    columns: int
    depth: int
    width: int

    @property
    def panels(self) -> int:
        """Panels of weights, the last with zeros past the columns."""
        return -(-self.columns // self.width)


class MatmulPacked:
    """`C[m, n] = epilogue(sum over k of A[m, k] * P[n // t, k, n % t])`, any leading axes of A flattened into m.

        for task (block of m, panels) in parallel:
            for panel, for m in tiles of the block:        fetching the next panel meanwhile
                acc[rows, vectors][lanes] = 0
                for k: acc[m, n] += broadcast(A[m, k]) * P[panel, k, n]
                C[tile] = epilogue(acc)

    and where a block of A of full depth does not fit L2, with the depth in parts and the sums in memory between them:

        for task (panels) in parallel:
            acc[all m, panels] = 0
            for part of k, for panel, for m in tiles:      fetching this part of the next panel meanwhile
                for k in part: acc[m, n] += ...            in registers
            C = epilogue(acc)

    Parameters: `rows` of the register tile; `tiles` of rows in a task, whose part of A then stays in L2 while the
    panels pass (all of them if the depth is split); `panels` in a task; `depth` of a part; `unroll` steps of k.
    The tile and the blocking of the depth after Goto and van de Geijn, 'Anatomy of high-performance matrix
    multiplication' (2008), with the packing of the weights done at compile time and none of A.
    """

    name = "cpu.matmul_packed"
    version = 4

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.template.Rule`."""
        cpu = cpu_of(target)
        shape = _match(func)
        if isinstance(shape, Declined):
            return shape
        chosen = _default(shape, cpu) if parameters is None else dict(parameters)
        if parameters is not None:
            check(chosen, _choices(shape, cpu))
        return Schedule(_schedule(func, shape, cpu, chosen), chosen)

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """See `schedules.template.Rule`."""
        shape = _match(func)
        return shape if isinstance(shape, Declined) else _choices(shape, cpu_of(target))


def _match(func: Any) -> _Shape | Declined:
    found = blocks_around(func, BLOCK)
    if isinstance(found, Declined):
        return found
    before, block, after = found
    if before:
        return Declined("something is computed before the product")
    extents: list[Any] = [tir.as_int(iv.dom.extent) for iv in block.iter_vars]
    if len(extents) != 3 or None in extents:
        return Declined("it is no product with weights in panels")
    column = block.iter_vars[1].var
    loads = [load for load in tir.loads(block.body.value) if tir.uses(load.indices[0], [column])]
    shapes: list[Any] = [tuple(map(tir.as_int, load.source.shape)) for load in loads if len(load.indices) == 3]
    if len(shapes) != 1 or None in shapes[0]:
        return Declined("it is no product with weights in panels")
    if len(after[-1].iter_vars) < 2:
        return Declined("its epilogue is not over the product's rows and columns")
    rows, columns, depth = extents
    width = shapes[0][2]
    return _Shape(rows, columns, depth, width)


def _choices(shape: _Shape, cpu: Cpu) -> Choices:
    searched = {
        "rows": divisors(shape.rows, 14),
        "tiles": divisors(shape.rows, _MOST_TILES),
        "panels": divisors(shape.panels, 64),
        "depth": tuple(d for d in divisors(shape.depth, shape.depth) if d >= min(_LEAST_DEPTH, shape.depth)),
        "unroll": divisors(shape.depth, 8),
    }
    return including(searched, _default(shape, cpu))


def _default(shape: _Shape, cpu: Cpu) -> dict[str, int]:
    vectors = max(1, shape.width // cpu.lanes(32))
    most = (cpu.vector_registers - 1 - vectors) // vectors
    rows = tile_of(shape.rows, min(14, most))
    whole = {"rows": rows, "panels": 1, "depth": shape.depth, "unroll": unrolled_steps(shape.depth)}
    row_bytes, panel_bytes = 4 * shape.depth, 4 * shape.depth * shape.width
    if shape.rows * row_bytes + 2 * panel_bytes <= cpu.l2_bytes * 3 // 4:
        return {**whole, "tiles": divisors(shape.rows // rows, _MOST_TILES)[-1]}
    depth = _part(shape, cpu)
    if 2 * panel_bytes > cpu.l2_bytes // 8 and depth is not None:
        return {**whole, "tiles": 1, "depth": depth, "panels": _panels_in_task(shape, cpu)}
    fitting = max(1, (cpu.l2_bytes * 3 // 4 - 2 * panel_bytes) // (rows * row_bytes))
    return {**whole, "tiles": divisors(shape.rows // rows, min(fitting, _MOST_TILES))[-1]}


def _part(shape: _Shape, cpu: Cpu) -> int | None:
    """The most of the depth of which a panel fits L1 and all rows a quarter of L2; None if that is too little."""
    most = min(cpu.l1_bytes // (4 * shape.width), cpu.l2_bytes // (16 * shape.rows))
    depth = divisors(shape.depth, most)[-1] if most else 1
    return depth if depth >= _LEAST_DEPTH else None


def _panels_in_task(shape: _Shape, cpu: Cpu) -> int:
    """The most panels whose sums fit a quarter of L2, of those that keep the cores about as busy as any."""
    fitting = divisors(shape.panels, max(1, cpu.l2_bytes // (16 * shape.rows * shape.width)))

    def busy(panels: int) -> float:
        rounds = -(-shape.panels // (panels * cpu.cores))
        return shape.panels / (rounds * cpu.cores * panels)

    best = max(map(busy, fitting))
    return max(panels for panels in fitting if busy(panels) >= 0.95 * best)


def _schedule(func: Any, shape: _Shape, cpu: Cpu, chosen: Parameters) -> Any:
    sch = s_tir.Schedule(func)
    _, _, after = blocks_around(func, BLOCK)  # type: ignore[misc]  # _match took it
    last = after[-1].name_hint
    for block in after[:-1]:
        sch.compute_inline(block.name_hint)
    _flatten_rows(sch, last, after[-1])
    parallel = analysis.worth_parallel(analysis.work_of(func).known_flops)
    if chosen["depth"] == shape.depth:
        _one_pass(sch, last, shape, cpu, chosen, parallel)
    else:
        _in_parts(sch, last, shape, cpu, chosen, parallel)
    return sch.mod["main"]


def _one_pass(sch: Any, last: str, shape: _Shape, cpu: Cpu, chosen: Parameters, parallel: bool) -> None:
    """Sums of full depth in registers, and the epilogue from there."""
    row, column = sch.get_loops(last)
    row, rows = sch.split(row, [None, chosen["rows"]])
    task, row = sch.split(row, [None, chosen["tiles"]])
    group, panel, column = sch.split(column, [None, chosen["panels"], shape.width])
    vector, lane = sch.split(column, [None, cpu.lanes(32)])
    sch.reorder(task, group, panel, row, rows, vector, lane)
    sch.compute_at(BLOCK, row, preserve_unit_loops=True)
    sch.set_scope(BLOCK, 0, "local")
    task = sch.fuse(task, group)
    if parallel:
        sch.parallel(task)
    blocks = shape.rows // (chosen["rows"] * chosen["tiles"])
    if chosen["tiles"] > 1 and 4 * shape.depth * shape.columns > cpu.l2_bytes // (2 if blocks > 1 else 8):
        moves.prefetch_ahead(sch, row, shape.depth * shape.width, shape.depth * shape.width)
    *_, row, column, k = sch.get_loops(BLOCK)
    vector_k, lane_k = sch.split(column, [None, cpu.lanes(32)])
    k, unrolled = sch.split(k, [None, chosen["unroll"]])
    sch.reorder(k, unrolled, row, vector_k, lane_k)
    _unroll(sch, (unrolled, row, vector_k, rows, vector), (lane_k, lane))
    sch.decompose_reduction(BLOCK, k)


def _in_parts(sch: Any, last: str, shape: _Shape, cpu: Cpu, chosen: Parameters, parallel: bool) -> None:
    """Sums of a part of the depth in registers, of the whole in the cache, then the epilogue."""
    row, column = sch.get_loops(last)
    task, column = sch.split(column, [None, chosen["panels"] * shape.width])
    sch.reorder(task, row, column)
    sch.compute_at(BLOCK, task, preserve_unit_loops=True)
    if parallel:
        sch.parallel(task)
    sch.vectorize(sch.split(column, [None, cpu.lanes(32)])[1])
    *_, row, column, k = sch.get_loops(BLOCK)
    # The accumulator has whole tiles: rows past the last are computed too, without a condition.
    tile, row = sch.split(row, [None, chosen["rows"]], disable_predication=True)
    panel, vector, lane = sch.split(column, [None, shape.width // cpu.lanes(32), cpu.lanes(32)])
    steps = gcd(chosen["depth"], chosen["unroll"])
    part, k, unrolled = sch.split(k, [None, chosen["depth"] // steps, steps])
    sch.reorder(part, panel, tile, k, unrolled, row, vector, lane)
    _unroll(sch, (unrolled, row, vector), (lane,))
    sch.decompose_reduction(BLOCK, part)
    moves.accumulate_locally(sch, k)
    moves.prefetch_ahead(sch, tile, shape.depth * shape.width, chosen["depth"] * shape.width)


def _unroll(sch: Any, loops: Sequence[Any], lanes: Sequence[Any]) -> None:
    for loop in loops:
        sch.unroll(loop)
    for loop in lanes:
        sch.vectorize(loop)


def _flatten_rows(sch: Any, name: str, block: Any) -> None:
    """The axes of the epilogue's rows as one."""
    sizes = [iv.dom.extent for iv in block.iter_vars]
    if len(sizes) == 2:
        return

    def flat(*axes: Any) -> tuple[Any, Any]:
        row = axes[0]
        for axis, size in zip(axes[1:-1], sizes[1:-1], strict=True):
            row = row * size + axis
        return row, axes[-1]

    sch.transform_block_layout(name, tirx.IndexMap.from_func(flat, ndim=len(sizes)))
