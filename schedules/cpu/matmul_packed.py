"""Matrix products with weights in panels, `P[N/t, K, t]`: GEMM at the speed of the multiply-adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx

from schedules import analysis, moves, tir
from schedules.cpu.register_tile import blocks_around, divisors, tile_of, unrolled_steps
from schedules.hardware import Cpu, cpu_of
from schedules.rule import Choices, Declined, Parameters, Schedule, check

__all__ = ["MatmulPacked"]

BLOCK = "matmul"


@dataclass(frozen=True)
class _Shape:
    """The accumulator `[rows, columns]`, its depth and the panels' width."""

    rows: int
    columns: int
    depth: int
    width: int


class MatmulPacked:
    """`C[m, n] = epilogue(sum over k of A[m, k] * P[n // t, k, n % t])`, any leading axes of A flattened into m.

        for task (block of m, panel) in parallel:
            for m in tiles of the block:
                acc[rows, vectors][lanes] = 0
                for k: acc[m, n] += broadcast(A[m, k]) * P[panel, k, n]
                C[tile] = epilogue(acc)

    Parameters: `rows` of the register tile; `tiles` of rows in a task, whose part of A then stays in L2 while the
    panels pass; `unroll` steps of k. The tile after Goto and van de Geijn, 'Anatomy of high-performance matrix
    multiplication' (2008), with the packing of the weights done at compile time and none of A.
    """

    name = "cpu.matmul_packed"
    version = 2

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.rule.Rule`."""
        cpu = cpu_of(target)
        shape = _match(func)
        if isinstance(shape, Declined):
            return shape
        chosen = _default(shape, cpu) if parameters is None else dict(parameters)
        if parameters is not None:
            check(chosen, _choices(shape))
        return Schedule(_schedule(func, shape, cpu, chosen), chosen)

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """See `schedules.rule.Rule`."""
        shape = _match(func)
        return shape if isinstance(shape, Declined) else _choices(shape)


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


def _choices(shape: _Shape) -> Choices:
    return {
        "rows": divisors(shape.rows, 14),
        "tiles": divisors(shape.rows, 64),
        "unroll": divisors(shape.depth, 8),
    }


def _default(shape: _Shape, cpu: Cpu) -> dict[str, int]:
    vectors = max(1, shape.width // cpu.lanes(32))
    most = (cpu.vector_registers - 1 - vectors) // vectors
    rows = tile_of(shape.rows, min(14, most))
    fitting = max(1, cpu.l2_bytes // 2 // (rows * shape.depth * 4))
    tiles = divisors(shape.rows // rows, fitting)[-1]
    return {"rows": rows, "tiles": tiles, "unroll": unrolled_steps(shape.depth)}


def _schedule(func: Any, shape: _Shape, cpu: Cpu, chosen: Parameters) -> Any:
    work = analysis.work_of(func).known_flops
    sch = s_tir.Schedule(func)
    _, _, after = blocks_around(func, BLOCK)  # type: ignore[misc]  # _match took it
    last = after[-1].name_hint
    for block in after[:-1]:
        sch.compute_inline(block.name_hint)
    _flatten_rows(sch, last, after[-1])
    row, column = sch.get_loops(last)
    row, rows = sch.split(row, [None, chosen["rows"]])
    task, row = sch.split(row, [None, chosen["tiles"]])
    panel, column = sch.split(column, [None, shape.width])
    vector, lane = sch.split(column, [None, cpu.lanes(32)])
    sch.reorder(task, panel, row, rows, vector, lane)
    sch.compute_at(BLOCK, row, preserve_unit_loops=True)
    sch.set_scope(BLOCK, 0, "local")
    task = sch.fuse(task, panel)
    if analysis.worth_parallel(work):
        sch.parallel(task)
    panel_elements = shape.depth * shape.width
    if chosen["tiles"] > 1:
        moves.prefetch_ahead(sch, row, panel_elements, panel_elements)
    _accumulate(sch, cpu.lanes(32), chosen["unroll"])
    sch.unroll(rows)
    sch.unroll(vector)
    sch.vectorize(lane)
    return sch.mod["main"]


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


def _accumulate(sch: Any, lanes: int, steps: int) -> None:
    *_, row, column, k = sch.get_loops(BLOCK)
    vector, lane = sch.split(column, [None, lanes])
    k, unrolled = sch.split(k, [None, steps])
    sch.reorder(k, unrolled, row, vector, lane)
    for loop in (unrolled, row, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.decompose_reduction(BLOCK, k)
