"""Depthwise convolution on `NCHW[v]c`: each input vector is loaded once a kernel row, borders outside the hot loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call

from schedules import analysis, moves, tir
from schedules.cpu.register_tile import blocks_around, divisors
from schedules.hardware import Cpu, cpu_of
from schedules.rule import Choices, Declined, Parameters, Schedule, check

__all__ = ["DepthwiseBlocked"]

BLOCK = "depthwise_conv2d"
MOST_TAPS = 8
"""Kernel columns up to which a kernel row is unrolled, its weights in registers."""


@dataclass(frozen=True)
class _Shape:
    """The result `[n, c, height, columns, v]`, the kernel's columns `taps`; whether its epilogue calls functions."""

    height: int
    columns: int
    taps: int
    batch: int
    work: int | None
    expensive: bool


class DepthwiseBlocked:
    """`C[n, c, h, w, v] = epilogue(sum of A[n, c, h*s + r*d, w*s + q*d, v] * W[c, r, q, v])`.

        for strip of rows, n, c, h in parallel:
            for tile of columns:                                # the first and the last apart: they have the borders
                acc[columns][v] = 0
                for r: if row h*s + r*d is in the image:
                    for w in columns: for q: acc[w] += A[…, w*s + q*d] * W[r, q]
                C[tile] = epilogue(acc)

    An input vector serves all its taps from a register, so the multiply-adds and not the loads are the limit where A is
    in the L2. Parameters: `columns` of the register tile; `strips` of rows, outermost, so that a core has the rows
    that it had in the layers before and after; `staged`: the epilogue is a loop over the tile in memory, for one that
    calls functions. The order of the taps is that of Zhang, Lo and Lu, 'High performance depthwise and pointwise
    convolutions on mobile devices' (2020).
    """

    name = "cpu.depthwise_blocked"
    version = 1

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.rule.Rule`."""
        cpu = cpu_of(target)
        shape = _match(func)
        if isinstance(shape, Declined):
            return shape
        chosen = _default(shape, cpu) if parameters is None else dict(parameters)
        if parameters is not None:
            check(chosen, _choices(shape, cpu))
        return Schedule(_schedule(func, shape, chosen, cpu), chosen)

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """See `schedules.rule.Rule`."""
        shape = _match(func)
        return shape if isinstance(shape, Declined) else _choices(shape, cpu_of(target))


def _match(func: Any) -> _Shape | Declined:
    found = blocks_around(func, BLOCK)
    if isinstance(found, Declined):
        return found
    _, block, after = found
    extents: list[Any] = [tir.as_int(iv.dom.extent) for iv in block.iter_vars]
    if len(extents) != 7 or None in extents[1:]:
        return Declined("it is no depthwise convolution on blocked layouts of known size")
    if len(after[-1].iter_vars) != 5:
        return Declined("its epilogue is not over the blocked result")
    expensive = any(analysis.is_expensive(stage.body.value) for stage in after)
    work = analysis.work_of(func).known_flops
    return _Shape(extents[2], extents[3], extents[6], extents[0] or 1, work, expensive)


def _most_columns(shape: _Shape, cpu: Cpu) -> int:
    """Accumulators that fit beside a kernel row and two inputs, and no more than twice what hides the latency."""
    weights = shape.taps if shape.taps <= MOST_TAPS else 1
    return max(1, min(cpu.vector_registers - weights - 2, 2 * cpu.fma_in_flight))


def _choices(shape: _Shape, cpu: Cpu) -> Choices:
    return {
        "columns": tuple(range(1, min(shape.columns, _most_columns(shape, cpu)) + 1)),
        "strips": divisors(shape.height, 16),
        "staged": (0, 1),
    }


def _default(shape: _Shape, cpu: Cpu) -> dict[str, int]:
    strips = cpu.cores if shape.height % cpu.cores == 0 and shape.batch == 1 else 1
    columns = _even_tile(shape.columns, _most_columns(shape, cpu))
    return {"columns": columns, "strips": strips, "staged": int(shape.expensive)}


def _even_tile(extent: int, most: int) -> int:
    """The fewest tiles, then the smallest tile: 28 in tiles of at most 16 is two of 14."""
    if extent <= most:
        return extent
    exact = [size for size in divisors(extent, most) if 2 * size > most]
    return exact[-1] if exact else -(-extent // -(-extent // most))


def _schedule(func: Any, shape: _Shape, chosen: Parameters, cpu: Cpu) -> Any:
    sch = s_tir.Schedule(func)
    before, _, after = blocks_around(func, BLOCK)  # type: ignore[misc]  # _match took it
    for block in [*before, *after[:-1]]:
        sch.compute_inline(block.name_hint)
    last = after[-1].name_hint
    batch, channel, row, column, lane = sch.get_loops(last)
    strip, row = sch.split(row, [chosen["strips"], None])
    tile, column = sch.split(column, [None, chosen["columns"]])
    sch.reorder(strip, batch, channel, row, tile, column, lane)
    if chosen["staged"]:
        _stage(sch, last, tile)
    else:
        sch.unroll(column)
    sch.vectorize(lane)
    sch.compute_at(BLOCK, tile, preserve_unit_loops=True)
    sch.set_scope(BLOCK, 0, "local")
    moves.parallelize(sch, [strip, batch, channel, row], shape.work, cpu.cores)
    _accumulate(sch, shape)
    sch.annotate(tile, "pragma_loop_partition_hint", True)
    return _skip_rows_outside(sch.mod["main"], f"{BLOCK}_update")


def _stage(sch: Any, last: str, tile: Any) -> None:
    """The epilogue reads the accumulators from memory, in a loop: a function's code is there once, not per column."""
    copy = sch.cache_read(last, _operand(sch, last), "local")
    sch.compute_at(copy, tile, preserve_unit_loops=True)
    *_, column, lane = sch.get_loops(copy)
    sch.unroll(column)
    sch.vectorize(lane)


def _operand(sch: Any, last: str) -> int:
    """Which of the buffers that the block reads is the accumulator."""
    accumulator = sch.get(sch.get_sblock(BLOCK)).writes[0].source
    reads = [region.source for region in sch.get(sch.get_sblock(last)).reads]
    return next(i for i, buffer in enumerate(reads) if buffer.same_as(accumulator))


def _accumulate(sch: Any, shape: _Shape) -> None:
    *_, column, lane, r, q = sch.get_loops(BLOCK)
    if shape.taps <= MOST_TAPS:
        sch.reorder(r, column, q, lane)
        sch.unroll(q)
    else:
        sch.reorder(r, q, column, lane)
    sch.unroll(column)
    sch.vectorize(lane)
    sch.decompose_reduction(BLOCK, r)


def _skip_rows_outside(func: Any, name: str) -> Any:
    """Rows of padding are skipped, and not multiplied as zeros.

    for r: acc += if_then_else(row(r) and column(w), A, 0) * W   →   for r: if row(r): acc += if_then_else(column(w), …)
    """
    realize = next(r for r in tir.block_realizes(func) if r.block.name_hint == name)
    values = {iv.var: value for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    h, r = (realize.block.iter_vars[axis].var for axis in (2, 5))
    found: list[Any] = []
    body = tvm_ffi.structural_map(realize.block.body, (Call, lambda call: _without_rows(call, [h, r], found)))
    if not found:
        return func
    condition = tir.substitute(tirx.all(*found), values)
    (kernel_row,) = tir.variables(values[r])

    def block_of(block: Any) -> Any:
        return _with_body(block, body) if block.name_hint == name else block

    def loop_of(loop: Any) -> Any:
        return _with_guard(loop, condition) if loop.loop_var.same_as(kernel_row) else loop

    return tvm_ffi.structural_map(func, [(s_tir.SBlock, block_of), (tirx.For, loop_of)])


def _without_rows(call: Any, rows: Sequence[Any], found: list[Any]) -> Any:
    """An if_then_else without the conditions that use nothing but `rows`, which go to `found`."""
    if not tir.is_if_then_else(call):
        return call
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
