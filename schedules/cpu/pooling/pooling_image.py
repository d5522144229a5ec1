"""Pooling on `NCHW[v]c` over whole images, where each core takes the rows that it wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tvm import s_tir

from relaxc.schedules.cpu.common.register_tile import divisors
from relaxc.schedules.cpu.pooling import pool_compute
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import moves
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import LoopRV, PrimFunc, TirSchedule
from relaxc.schedules.ir.work import work_of
from relaxc.schedules.operators import Pool2d
from relaxc.schedules.plan import Plan
from relaxc.schedules.planned import Planned
from relaxc.schedules.template import Declined

__all__ = ["PoolingImage"]

PARAMETERS = ("block", "strips", "rows")
ROWS, STRIPS, IMAGE = "pool_rows", "pool_strips", "pool_image"


class PoolingImage(Planned[Pool2d]):
    """`C[n, c, 0, 0, v] = epilogue(reduce over h, w of A[n, c, h, w, v])`.

        for strip of rows, n, c in parallel:
            for block of rows:
                for w: for h in rows: acc[h] += A[n, c, h, w]
                R[n, c, strip] += sum of acc
        for n, c: C[n, c] = epilogue(sum over strips of R[n, c, strip])

    Parameters: `block` channels and `strips`, which are in the stages already and are those of the layer that writes
    the image; `rows`, which are reduced side by side to hide the latency of an addition.
    """

    name = "cpu.pooling_image"
    version = 1
    layout = ("block", "strips")
    computes = Pool2d
    dtypes = (("float32", "float32"),)
    kernel = "image"

    def refusal(self, operator: Pool2d, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """See `Planned`."""
        if set(parameters) != set(PARAMETERS):
            return f"the template's parameters are {', '.join(PARAMETERS)}"
        block, strips, rows = (parameters[name] for name in PARAMETERS)
        wrong = {
            self.wrong_dtypes(operator): bool(self.wrong_dtypes(operator)),
            "it is over windows": not operator.whole,
            "the blocks of channels are not as wide as a vector": block != cpu.lanes(operator.sum_bits),
            "strips do not divide the rows": strips < 1 or _divides_no(operator.height, strips),
            "rows do not fit the registers": not 1 <= rows <= cpu.vector_registers - 2,
            "rows do not divide those of a strip": strips < 1
            or rows < 1
            or _divides_no(operator.height // strips, rows),
        }
        return next((reason for reason, is_so in wrong.items() if is_so), "")

    def default(self, operator: Pool2d, cpu: Cpu) -> Mapping[str, int] | None:
        """See `Planned`."""
        return _default(operator, cpu) if operator.whole else None

    def space(self, operator: Pool2d, cpu: Cpu) -> Iterator[dict[str, int]]:
        """See `Planned`."""
        first = _default(operator, cpu)
        for strips in sorted({1, first["strips"]}) if operator.whole and not self.wrong_dtypes(operator) else ():
            for rows in divisors(operator.height // strips or 1, cpu.vector_registers - 2):
                yield {**first, "strips": strips, "rows": rows}

    def estimate(self, operator: Pool2d, parameters: Mapping[str, int], cpu: Cpu) -> float:
        """Return the cycles of the busiest core, bound by loads or by the latency of an addition."""
        rows, strips = parameters["rows"], parameters["strips"]
        tasks = strips * (operator.batch or 1) * -(-operator.channels // parameters["block"])
        step = max(rows / cpu.loads_per_cycle, cpu.fma_latency)
        assumed = operator.assumed()
        return -(-tasks // cpu.cores) * (assumed.height // strips // rows) * (assumed.width * step + rows)

    def kernel_name(self, operator: Pool2d) -> str:
        """See `Planned`."""
        return f"{operator.reduce}_{self.kernel}"

    def compute(self, plan: Plan) -> Callable[..., Any]:
        """See `Planned`."""
        return partial(pool_compute.pool_image, plan=plan)

    def emit(self, func: PrimFunc, operator: Pool2d, parameters: Mapping[str, int], cpu: Cpu) -> PrimFunc | Declined:
        """See `Planned`."""
        del operator
        names = [realize.block.name_hint for realize in block_realizes(func)]
        if names[:3] != [ROWS, STRIPS, IMAGE] or len(names) != 4:
            return Declined("its stages are not rows, strips, image and what is made of that")
        return _image(func, names[3], parameters, cpu)


def _divides_no(extent: int, parts: int) -> bool:
    """Whether an extent has no such parts: one that is not known has but one."""
    return bool(extent % parts) if extent else parts > 1


def _default(op: Pool2d, cpu: Cpu) -> dict[str, int]:
    """A strip a core where rows can be divided among them, and rows that hide the latency of an addition."""
    if not op.height:
        return {"block": cpu.lanes(op.sum_bits), "strips": 1, "rows": 1}
    divided = op.height % cpu.cores == 0 and (op.batch or 1) == 1
    strips = cpu.cores if divided else 1
    rows = divisors(op.height // strips, cpu.fma_in_flight)[-1]
    return {"block": cpu.lanes(op.sum_bits), "strips": strips, "rows": rows}


def _image(func: PrimFunc, last: str, chosen: Mapping[str, int], cpu: Cpu) -> PrimFunc:
    sch, work, strips = s_tir.Schedule(func), work_of(func).known_flops, chosen["strips"]
    task, *_, lane = sch.get_loops(last)[1:]
    if strips == 1:
        task = moves.parallelize(sch, sch.get_loops(last)[:2], work, cpu.cores)
    sch.vectorize(lane)
    sch.compute_at(IMAGE, task, preserve_unit_loops=True)
    _keep_lanes_inside(sch, IMAGE)
    if strips == 1:
        sch.compute_at(STRIPS, task, preserve_unit_loops=True)
    else:
        batch, channel, strip, *_ = sch.get_loops(STRIPS)
        sch.reorder(strip, batch, channel)
        moves.parallelize(sch, [strip, batch, channel], work, cpu.cores)
    *_, lane, row = sch.get_loops(STRIPS)
    row, rows = sch.split(row, [None, chosen["rows"]])
    sch.reorder(row, rows, lane)
    sch.compute_at(ROWS, row, preserve_unit_loops=True)
    sch.unroll(rows)
    sch.vectorize(lane)
    sch.decompose_reduction(STRIPS, row)
    sch.unroll(_keep_lanes_inside(sch, ROWS))
    return sch.mod["main"]


def _keep_lanes_inside(sch: TirSchedule, name: str) -> LoopRV:
    """for a: for lane: for reduced: x   →   for reduced: for a: for lane in a vector: x, in registers. Returns a."""
    *_, around, lane, reduced = sch.get_loops(name)
    sch.set_scope(name, 0, "local")
    sch.reorder(reduced, around, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(name, reduced)
    return around
