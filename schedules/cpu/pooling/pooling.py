"""Pooling on `NCHW[v]c`: windows as in a depthwise convolution, and whole images, each core the rows that it wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir

from schedules.cpu.common import window_blocked
from schedules.cpu.common.register_tile import divisors
from schedules.cpu.common.window_blocked import Window
from schedules.hardware import Cpu, cpu_of
from schedules.ir import analysis, moves, tir
from schedules.template import Choices, Declined, Parameters, Schedule, check

__all__ = ["Pooling"]

WINDOWS = "pool2d"
ROWS, STRIPS, IMAGE = "pool_rows", "pool_strips", "pool_image"


@dataclass(frozen=True)
class _Whole:
    """`pool_rows[n, c, strip, height, v]`, each of a row of the image, and `last`, the stage behind `pool_image`."""

    strips: int
    height: int
    work: int | None
    last: str


class Pooling:
    """`C[n, c, h, w, v] = epilogue(reduce over r, q of A[n, c, h*s + r*d, w*s + q*d, v])`, or over whole images.

        windows: as `DepthwiseBlocked`, without weights
        images:  for strip of rows, n, c in parallel:
                     for block of rows:
                         for w: for h in rows: acc[h] += A[n, c, h, w]
                         R[n, c, strip] += sum of acc
                 for n, c: C[n, c] = epilogue(sum over strips of R[n, c, strip])

    Parameters: those of `DepthwiseBlocked`; for images `rows`, which are reduced side by side to hide the latency of an
    addition. The strips of an image are those of the layer that writes it.
    """

    name = "cpu.pooling"
    version = 1

    def apply(self, func: Any, target: Any, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `schedules.template.Rule`."""
        cpu = cpu_of(target)
        found = _find(func, cpu_of(target))
        if isinstance(found, Declined):
            return found
        if parameters is not None:
            check(parameters, _choices(found, cpu))
        if isinstance(found, Window):
            chosen = dict(parameters or window_blocked.default(found, cpu))
            return Schedule(window_blocked.schedule(func, found, chosen, cpu), chosen)
        chosen = dict(parameters or _default(found, cpu))
        return Schedule(_images(func, found, chosen, cpu), chosen)

    def choices(self, func: Any, target: Any) -> Choices | Declined:
        """See `schedules.template.Rule`."""
        found = _find(func, cpu_of(target))
        return found if isinstance(found, Declined) else _choices(found, cpu_of(target))


def _find(func: Any, cpu: Cpu) -> Window | _Whole | Declined:
    return _find_whole(func) if ROWS in tir.block_names(func) else window_blocked.find(func, WINDOWS, cpu)


def _find_whole(func: Any) -> _Whole | Declined:
    blocks = [realize.block for realize in tir.block_realizes(func)]
    if [block.name_hint for block in blocks[:3]] != [ROWS, STRIPS, IMAGE] or len(blocks) != 4:
        return Declined("its stages are not rows, strips, image and what is made of that")
    extents = [tir.as_int(iv.dom.extent) for iv in blocks[0].iter_vars]
    if len(extents) != 6 or None in extents[1:]:
        return Declined("its image is not of known size")
    return _Whole(extents[2] or 1, extents[3] or 1, analysis.work_of(func).known_flops, blocks[3].name_hint)


def _choices(found: Window | _Whole, cpu: Cpu) -> Choices:
    if isinstance(found, Window):
        return window_blocked.choices(found, cpu)
    return {"rows": divisors(found.height, cpu.vector_registers - 2)}


def _default(found: _Whole, cpu: Cpu) -> dict[str, int]:
    return {"rows": divisors(found.height, cpu.fma_in_flight)[-1]}


def _images(func: Any, found: _Whole, chosen: Parameters, cpu: Cpu) -> Any:
    sch = s_tir.Schedule(func)
    task, *_, lane = sch.get_loops(found.last)[1:]
    if found.strips == 1:
        task = moves.parallelize(sch, sch.get_loops(found.last)[:2], found.work, cpu.cores)
    sch.vectorize(lane)
    sch.compute_at(IMAGE, task, preserve_unit_loops=True)
    _keep_lanes_inside(sch, IMAGE)
    if found.strips == 1:
        sch.compute_at(STRIPS, task, preserve_unit_loops=True)
    else:
        batch, channel, strip, *_ = sch.get_loops(STRIPS)
        sch.reorder(strip, batch, channel)
        moves.parallelize(sch, [strip, batch, channel], found.work, cpu.cores)
    *_, lane, row = sch.get_loops(STRIPS)
    row, rows = sch.split(row, [None, chosen["rows"]])
    sch.reorder(row, rows, lane)
    sch.compute_at(ROWS, row, preserve_unit_loops=True)
    sch.unroll(rows)
    sch.vectorize(lane)
    sch.decompose_reduction(STRIPS, row)
    sch.unroll(_keep_lanes_inside(sch, ROWS))
    return sch.mod["main"]


def _keep_lanes_inside(sch: Any, name: str) -> Any:
    """for a: for lane: for reduced: x   →   for reduced: for a: for lane in a vector: x, in registers. Returns a."""
    *_, around, lane, reduced = sch.get_loops(name)
    sch.set_scope(name, 0, "local")
    sch.reorder(reduced, around, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(name, reduced)
    return around
