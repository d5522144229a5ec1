"""What depthwise convolution and pooling share on `NCHW[v]c` and on NHWC: a window slid over an image, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call

from schedules.cpu.common.register_tile import blocks_around, divisors
from schedules.hardware import Cpu
from schedules.ir import analysis, moves, tir
from schedules.template import Choices, Declined, Parameters

__all__ = ["Window", "choices", "default", "find", "schedule"]

MOST_TAPS = 8
"""Window columns up to which a row of the window is unrolled."""


@dataclass(frozen=True)
class Window:
    """The block `name`: its result is `[n, c, height, columns, v]` and its window has `taps` columns.

    Or it is `[n, height, columns, channels]` with `channels` a multiple of a vector; 0 where they are blocked.
    `weighted`: there is a weight a tap, in a register. `expensive`: the epilogue calls functions. `dtype`: what the
    window is reduced in.
    """

    name: str
    height: int
    columns: int
    taps: int
    batch: int
    channels: int
    weighted: bool
    work: int | None
    expensive: bool
    dtype: str

    def lanes(self, cpu: Cpu) -> int:
        """The accumulators of a vector."""
        return cpu.lanes(tir.dtype_bits(self.dtype))

    def most_columns(self, cpu: Cpu) -> int:
        """Accumulators that fit beside a row of weights and two inputs; at most twice what hides the latency."""
        weights = (self.taps if self.taps <= MOST_TAPS else 1) if self.weighted else 0
        return max(1, min(cpu.vector_registers - weights - 2, 2 * cpu.fma_in_flight))


def find(func: Any, name: str, cpu: Cpu) -> Window | Declined:
    """The window of the block called `name`, with elementwise stages before and behind it."""
    found = blocks_around(func, name)
    if isinstance(found, Declined):
        return found
    _, block, after = found
    extents: list[Any] = [tir.as_int(iv.dom.extent) for iv in block.iter_vars]
    if len(extents) not in (6, 7) or None in extents[1:]:
        return Declined("its window is not over an image of known size")
    channels = extents[3] if len(extents) == 6 else 0
    dtype = str(block.body.buffer.dtype)
    if channels % cpu.lanes(tir.dtype_bits(dtype)):
        return Declined("its channels do not fill vectors")
    if len(after[-1].iter_vars) != len(extents) - 2:
        return Declined("its epilogue is not over the same axes")
    expensive = any(analysis.is_expensive(stage.body.value) for stage in after)
    weighted = sum(not load.source.same_as(block.body.buffer) for load in tir.loads(block.body.value)) > 1
    work = analysis.work_of(func).known_flops
    height, columns = extents[-5:-3] if channels else extents[2:4]
    return Window(name, height, columns, extents[-1], extents[0] or 1, channels, weighted, work, expensive, dtype)


def choices(window: Window, cpu: Cpu) -> Choices:
    """Any columns of the register tile, divisors of the height as strips, the epilogue staged or not."""
    return {
        "columns": tuple(range(1, min(window.columns, window.most_columns(cpu)) + 1)),
        "strips": divisors(window.height, 16),
        "staged": (0, 1),
    }


def default(window: Window, cpu: Cpu) -> dict[str, int]:
    """The fewest even tiles, and as many strips as there are cores, where rows can be divided among them."""
    strips = cpu.cores if window.height % cpu.cores == 0 and window.batch == 1 else 1
    columns = _even_tile(window.columns, window.most_columns(cpu))
    return {"columns": columns, "strips": strips, "staged": int(window.expensive)}


def _even_tile(extent: int, most: int) -> int:
    """The fewest tiles, then the smallest tile: 28 in tiles of at most 16 is two of 14."""
    if extent <= most:
        return extent
    exact = [size for size in divisors(extent, most) if 2 * size > most]
    return exact[-1] if exact else -(-extent // -(-extent // most))


def schedule(func: Any, window: Window, chosen: Parameters, cpu: Cpu) -> Any:
    """The PrimFunc of `find` as in the docstring of the templates that call this."""
    sch = s_tir.Schedule(func)
    before, block, after = blocks_around(func, window.name)  # type: ignore[misc]  # find took it
    for stage in [*before, *after[:-1]]:
        sch.compute_inline(stage.name_hint)
    last = after[-1].name_hint
    if window.channels:
        batch, row, column, channel = sch.get_loops(last)
        channel, lane = sch.split(channel, [None, window.lanes(cpu)])
    else:
        batch, channel, row, column, lane = sch.get_loops(last)
    strip, row = sch.split(row, [chosen["strips"], None])
    tile, column = sch.split(column, [None, chosen["columns"]])
    sch.reorder(strip, batch, channel, row, tile, column, lane)
    if chosen["staged"]:
        _stage(sch, window.name, last, tile)
    else:
        sch.unroll(column)
    sch.vectorize(lane)
    sch.compute_at(window.name, tile, preserve_unit_loops=True)
    sch.set_scope(window.name, 0, "local")
    moves.parallelize(sch, [strip, batch, channel, row], window.work, cpu.cores)
    _accumulate(sch, window)
    sch.annotate(tile, "pragma_loop_partition_hint", True)
    return _skip_rows_outside(sch.mod["main"], f"{window.name}_update", block.init.value)


def _stage(sch: Any, name: str, last: str, tile: Any) -> None:
    """The epilogue reads the accumulators from memory, in a loop: a function's code is there once, not per column."""
    accumulator = sch.get(sch.get_sblock(name)).writes[0].source
    reads = [region.source for region in sch.get(sch.get_sblock(last)).reads]
    index = next(i for i, buffer in enumerate(reads) if buffer.same_as(accumulator))
    copy = sch.cache_read(last, index, "local")
    sch.compute_at(copy, tile, preserve_unit_loops=True)
    *_, column, lane = sch.get_loops(copy)
    sch.unroll(column)
    sch.vectorize(lane)


def _accumulate(sch: Any, window: Window) -> None:
    *_, column, lane, r, q = sch.get_loops(window.name)
    if window.taps <= MOST_TAPS:
        sch.reorder(r, column, q, lane)
        sch.unroll(q)
    else:
        sch.reorder(r, q, column, lane)
    sch.unroll(column)
    sch.vectorize(lane)
    sch.decompose_reduction(window.name, r)


def _skip_rows_outside(func: Any, name: str, identity: Any) -> Any:
    """Rows of padding are skipped where they would add the `identity`.

    for r: acc += if_then_else(row(r) and column(w), A, 0) * W   →   for r: if row(r): acc += if_then_else(column(w), …)
    """
    realize = next(r for r in tir.block_realizes(func) if r.block.name_hint == name)
    values = {iv.var: value for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    h, r = (realize.block.iter_vars[axis].var for axis in (-5, -2))
    found: list[Any] = []

    def inner(call: Any) -> Any:
        return (
            _without_rows(call, [h, r], found)
            if tir.is_if_then_else(call) and tir.same(call.args[2], identity)
            else call
        )

    body = tvm_ffi.structural_map(realize.block.body, (Call, inner))
    if not found:
        return func
    condition = tir.substitute(tirx.all(*found), values)
    (window_row,) = tir.variables(values[r])

    def block_of(block: Any) -> Any:
        return _with_body(block, body) if block.name_hint == name else block

    def loop_of(loop: Any) -> Any:
        return _with_guard(loop, condition) if loop.loop_var.same_as(window_row) else loop

    return tvm_ffi.structural_map(func, [(s_tir.SBlock, block_of), (tirx.For, loop_of)])


def _without_rows(call: Any, rows: Sequence[Any], found: list[Any]) -> Any:
    """An if_then_else without the conditions that use nothing but `rows`, which go to `found`."""
    conditions = _conjuncts(call.args[0])
    others = [each for each in conditions if len(tir.uses(each, rows)) < len(tir.variables(each))]
    found.extend(each for each in conditions if not any(each.same_as(other) for other in others))
    return tirx.if_then_else(tirx.all(*others), *call.args[1:]) if others else call.args[1]


def _conjuncts(condition: Any) -> list[Any]:
    return [*_conjuncts(condition.a), *_conjuncts(condition.b)] if isinstance(condition, tirx.And) else [condition]


def _with_body(block: Any, body: Any) -> Any:
    axes, reads, writes = block.iter_vars, block.reads, block.writes
    return s_tir.SBlock(axes, reads, writes, block.name_hint, body, annotations=block.annotations)


def _with_guard(loop: Any, condition: Any) -> Any:
    body = tirx.IfThenElse(condition, loop.body, None)
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)
