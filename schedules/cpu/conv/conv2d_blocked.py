"""Direct convolution on blocked layouts, `NCHW[v]c` and `OIHW[i]i[v]o`: no gathering, no tails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from operator import add
from typing import Any

from tvm import s_tir

from schedules.cpu.common.register_tile import (
    UNROLLED_COLUMNS,
    best_vectors,
    blocks_around,
    divisors,
    tile_of,
)
from schedules.hardware import Cpu, cpu_of
from schedules.ir import moves, tir
from schedules.template import Choices, Declined, Parameters, Schedule, check, including

__all__ = ["Conv2dBlocked"]

BLOCK = "conv2d"

_AS_GOOD = 1.03
"""The part over the fewest cycles within which larger tasks, whose panels are used more often, are the better ones."""

_LEAST_TILES = 4
"""Tiles in a task that use a panel, under which fetching the next one adds too much to reading this one."""


@dataclass(frozen=True)
class _Shape:
    """The accumulator `[n, o, h, w, v]`, weights of a block o, bytes of input to a row h (a column where `flat`).

    A flat convolution has its h folded into w.
    """

    batch: int
    blocks: int
    height: int
    columns: int
    in_lanes: int
    panel: int
    row_bytes: int
    flat: bool

    @property
    def small(self) -> bool:
        """Whether its tiles run over the ends of image rows, so that only unrolled they have addresses at hand."""
        return self.flat and self.columns <= UNROLLED_COLUMNS

    def parts(self, rows: int) -> int:
        """What a task has a number of: tiles where it is flat, else rows."""
        return self.columns // rows if self.flat else self.height


class Conv2dBlocked:
    """`C[n, o, h, w, ov] = epilogue(sum of A[n, i, h*s + r, w*s + q, iv] * W[o, i, r, q, iv, ov])`.

        for task (n, chunk of o, block of rows) in parallel:
            pad the task's rows of A                        # only where there is padding
            for o, h, w in tiles:                           # fetching the weights of the next o meanwhile
                acc[rows, vectors][v] = 0
                for i, r, q, iv: acc[w, o] += broadcast(A[…, w*s + q, iv]) * W[o, i, r, q, iv]
                C[tile] = epilogue(acc)

    Parameters: `rows` (columns w of the register tile) and `vectors` (channel blocks of it), `height` (rows h of a
    task, or tiles where h is folded into w), `chunks` (parts of o that are tasks of their own), `unroll`
    steps of iv, `prefetch` (0 or 1).
    After Georganas et al., 'Anatomy of high-performance deep learning convolutions on SIMD architectures' (2018).
    """

    name = "cpu.conv2d_blocked"
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
        return Schedule(_schedule(func, shape, chosen), chosen)

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """See `schedules.template.Rule`."""
        shape = _match(func)
        return shape if isinstance(shape, Declined) else _choices(shape, cpu_of(target))


def _match(func: Any) -> _Shape | Declined:
    found = blocks_around(func, BLOCK)
    if isinstance(found, Declined):
        return found
    _, block, after = found
    extents: list[Any] = [tir.as_int(iv.dom.extent) for iv in block.iter_vars]
    if len(extents) != 9 or None in extents[1:]:
        return Declined("it is no convolution on blocked layouts of known size")
    batch, blocks, height, columns, lanes, i, r, q, in_lanes = extents
    last: list[Any] = [tir.as_int(iv.dom.extent) for iv in after[-1].iter_vars]
    if len(last) != 5:
        return Declined("its epilogue is not over the blocked result")
    flat = height == 1 and last[2] != 1
    row_bytes = _bytes_read(block, last[2], last[3]) // (columns if flat else height)
    return _Shape(batch or 1, blocks, height, columns, in_lanes, lanes * i * r * q * in_lanes, row_bytes, flat)


def _bytes_read(block: Any, height: int, width: int) -> int:
    """Bytes of an image that the convolution reads, where it goes over some pixels with a stride as well."""
    *_, kernel_h, kernel_w, _ = (tir.as_int(iv.dom.extent) or 1 for iv in block.iter_vars)
    sources = [load.source for load in tir.loads(block.body.value) if not load.source.same_as(block.body.buffer)]
    source = next(buffer for buffer in sources if len(buffer.shape) < 6)
    _, channels, rows, columns, *lanes = (tir.as_int(extent) or 1 for extent in source.shape)
    pixels = min(rows, kernel_h * height) * min(columns, kernel_w * width)
    return channels * prod(lanes) * pixels * tir.dtype_bits(str(source.dtype)) // 8


def _choices(shape: _Shape, cpu: Cpu) -> Choices:
    searched = {
        "rows": divisors(shape.columns, cpu.vector_registers - 4),
        "vectors": divisors(shape.blocks, 4),
        "height": divisors(shape.parts(2), 64),
        "chunks": divisors(shape.blocks, 16),
        "unroll": divisors(shape.in_lanes, 4),
        "prefetch": (0, 1),
    }
    return including(searched, _default(shape, cpu))


def _default(shape: _Shape, cpu: Cpu) -> dict[str, int]:
    """The largest tile that fits the registers, and the tasks that `_cycles` finds to be the fastest."""
    rows = tile_of(shape.columns, (cpu.vector_registers - 4) // 2)
    vectors = best_vectors(rows, divisors(shape.blocks, 4), cpu)
    # LLVM loads the weights of all steps of the innermost loop first, a vector's.
    spare = cpu.vector_registers - rows * vectors - vectors - 1
    unroll = divisors(shape.in_lanes, min(4, 1 + max(0, spare)))[-1]
    part_bytes = shape.row_bytes * (rows if shape.flat else 1)
    heights = divisors(shape.parts(rows), max(1, cpu.l2_bytes // 4 // part_bytes))
    chunks = divisors(shape.blocks // vectors, cpu.cores)
    cycles = {(height, chunk): _cycles(shape, cpu, rows, height, chunk) for height in heights for chunk in chunks}
    good = [point for point, count in cycles.items() if count <= _AS_GOOD * min(cycles.values())]
    height, chunk = max(good, key=lambda point: (-point[1], point[0]))
    tile = {"rows": rows, "vectors": vectors, "unroll": unroll}
    return {**tile, "height": height, "chunks": chunk, "prefetch": int(_fetches(shape, rows, height))}


def _fetches(shape: _Shape, rows: int, height: int) -> bool:
    return height * (1 if shape.flat else shape.columns // rows) >= _LEAST_TILES


def _cycles(shape: _Shape, cpu: Cpu, rows: int, height: int, chunks: int) -> float:
    """An estimate of all rounds of tasks: the multiply-adds, and reading weights at first, or always if L2 loses them.

    A core that computes a part of the rows finds most of its input in its own L2, for it wrote it. One that computes a
    part of the channels waits for input that the others wrote.
    """
    tasks = shape.batch * (shape.parts(rows) // height) * chunks
    columns = height * (rows if shape.flat else shape.columns)
    weights = shape.panel * shape.blocks // chunks
    compute = weights * columns / (cpu.lanes(32) * cpu.fma_per_cycle)
    read = 4 * weights / cpu.l3_bytes_per_cycle
    again = read if 4 * weights > cpu.l2_bytes // 2 else 0.0
    wait = height * shape.row_bytes * (rows if shape.flat else 1) / cpu.l3_bytes_per_cycle if chunks > 1 else 0.0
    both: Callable[[float, float], float] = max if _fetches(shape, rows, height) else add
    rounds = -(-tasks // cpu.cores)
    return both(compute, read) + (rounds - 1) * both(compute, again) + rounds * wait


def _schedule(func: Any, shape: _Shape, chosen: Parameters) -> Any:
    sch = s_tir.Schedule(func)
    before, _, after = blocks_around(func, BLOCK)  # type: ignore[misc]  # _match took it
    last = after[-1].name_hint
    for block in after[:-1]:
        sch.compute_inline(block.name_hint)
    if shape.flat:
        width = tir.as_int(after[-1].iter_vars[3].dom.extent)
        sch.transform_block_layout(last, lambda n, o, h, w, v: (n, o, h * width + w, v))
        batch, channel, column, lane = sch.get_loops(last)
    else:
        batch, channel, row, column, lane = sch.get_loops(last)
    chunk, channel, channels = sch.split(channel, [chosen["chunks"], None, chosen["vectors"]])
    column, columns = sch.split(column, [None, chosen["rows"]])
    if shape.flat:
        task, column = sch.split(column, [None, chosen["height"]])
        sch.reorder(batch, chunk, task, channel, column, channels, columns, lane)
    else:
        task, row = sch.split(row, [None, chosen["height"]])
        sch.reorder(batch, chunk, task, channel, row, column, channels, columns, lane)
    sch.compute_at(BLOCK, column, preserve_unit_loops=True)
    sch.set_scope(BLOCK, 0, "local")
    _prologue(sch, [block.name_hint for block in before], task)
    if chosen["prefetch"]:
        panel = shape.panel * chosen["vectors"]
        moves.prefetch_ahead(sch, column if shape.flat or chosen["height"] == 1 else row, panel, panel)
    sch.parallel(sch.fuse(batch, chunk, task))
    if shape.small:
        sch.unroll(column)
    _accumulate(sch, chosen["unroll"])
    for loop in (channels, columns):
        sch.unroll(loop)
    sch.vectorize(lane)
    return sch.mod["main"]


def _prologue(sch: Any, names: list[str], task: Any) -> None:
    """What pads or scales by a gate, for each task, into a buffer that stays in the cache; what is before it inside."""
    kept = [name for name in names if name in ("pad", "gated")]
    for name in names:
        if name not in kept:
            sch.compute_inline(name)
    for name in kept:
        sch.compute_at(name, task, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(name)[-1])


def _accumulate(sch: Any, steps: int) -> None:
    *_, channels, _, columns, lane, i, r, q, iv = sch.get_loops(BLOCK)
    iv, unrolled = sch.split(iv, [None, steps])
    sch.reorder(i, r, q, iv, unrolled, columns, channels, lane)
    for loop in (unrolled, columns, channels):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.decompose_reduction(BLOCK, i)
