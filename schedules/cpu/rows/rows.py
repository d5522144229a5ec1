"""Row-wise functions on a CPU (softmax, layer and group norm, sums) of rows of a known length."""

from __future__ import annotations

from relaxc.schedules.cpu.common.nest import lanes_of
from relaxc.schedules.cpu.gemm.matmul import inlined
from relaxc.schedules.cpu.rows.program import row_program
from relaxc.schedules.cpu.rows.stages import RowFunction, row_function
from relaxc.schedules.hardware import Cpu, cpu_of
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.ir.work import work_of, worth_parallel
from relaxc.schedules.template import Choices, Declined, Parameters, Schedule, check

__all__ = ["Rows"]

_UNROLL = (1, 2, 4, 8)


class Rows:
    """`out[r, i] = f(x[r, i], reduce over j of g(x[r, j]), …)`, any number of reductions after each other.

    One pass over memory: a row's stages run while it is in the cache, those that need no result of each other in the
    same loop. Parameters: `lanes` of a vector, and `unroll`, the vectors and accumulators of one step.

    Declines where the stages have no leading axes in common, a stage does not run along memory, or the length of
    a row is symbolic.
    """

    name = "cpu.rows"
    version = 3

    def apply(self, func: PrimFunc, target: Target, parameters: Parameters | None = None) -> Schedule | Declined:
        """See `relaxc.schedules.template.Rule`."""
        cpu, func = cpu_of(target), inlined(func)
        found = row_function(func)
        if isinstance(found, Declined):
            return found
        chosen = _default(found, cpu) if parameters is None else dict(parameters)
        check(chosen, _choices(found, cpu))
        work = work_of(func).known_flops
        parallel = cpu.cores > 1 and worth_parallel(work)
        return Schedule(row_program(func, found, parallel=parallel, ahead=_leaves_l2(func, cpu), **chosen), chosen)

    def choices(self, func: PrimFunc, target: Target) -> Choices | Declined:
        """See `relaxc.schedules.template.Rule`."""
        found = row_function(inlined(func))
        return found if isinstance(found, Declined) else _choices(found, cpu_of(target))


def _leaves_l2(func: PrimFunc, cpu: Cpu) -> bool:
    """Whether what it reads and writes comes from beyond L2; a symbolic number of rows counts as many."""
    size = work_of(func).size_bytes
    return not isinstance(size, int) or size > cpu.l2_bytes * cpu.cores


def _lanes(found: RowFunction, cpu: Cpu) -> int:
    return min(lanes_of(stage.block, cpu) for stage in found.stages)


def _choices(found: RowFunction, cpu: Cpu) -> Choices:
    lanes = _lanes(found, cpu)
    return {"lanes": (lanes, 2 * lanes), "unroll": _UNROLL}


def _default(found: RowFunction, cpu: Cpu) -> dict[str, int]:
    """Accumulators that hide the latency of an addition, and leave registers for what is added."""
    wanted = min(cpu.fma_in_flight, cpu.vector_registers // 4)
    return {"lanes": _lanes(found, cpu), "unroll": max(u for u in _UNROLL if u <= wanted)}
