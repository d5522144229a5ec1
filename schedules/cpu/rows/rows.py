"""Row-wise functions on a CPU (softmax, layer and group norm, sums) of rows of a known length."""

from __future__ import annotations

from relaxc.schedules.cpu.common.nest import lanes_of
from relaxc.schedules.cpu.gemm.matmul import inlined
from relaxc.schedules.cpu.rows.program import row_program
from relaxc.schedules.cpu.rows.stages import RowFunction, row_function
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.types import PrimFunc, Target
from relaxc.schedules.ir.work import work_of, worth_parallel
from relaxc.schedules.template import Choices, Declined, Parameters, Template

__all__ = ["Rows"]

_UNROLL = (1, 2, 4, 8)
_Form = tuple[PrimFunc, RowFunction]


class Rows(Template[_Form, Cpu]):
    """`out[r, i] = f(x[r, i], reduce over j of g(x[r, j]), …)`, any number of reductions after each other.

    One pass over memory: a row's stages run while it is in the cache, those that need no result of each other in the
    same loop. Parameters: `lanes` of a vector, and `unroll`, the vectors and accumulators of one step.

    Declines where the stages have no leading axes in common, a stage does not run along memory, or the length of
    a row is symbolic.
    """

    name = "cpu.rows"
    version = 3

    def matched(self, func: PrimFunc, target: Target) -> _Form | Declined:
        """Return the stages of a row, and the PrimFunc that has no others."""
        func = inlined(func)
        found = row_function(func)
        return found if isinstance(found, Declined) else (func, found)

    def default(self, form: _Form, cpu: Cpu) -> Parameters:
        """Return accumulators that hide the latency of an addition, and leave registers for what is added."""
        wanted = min(cpu.fma_in_flight, cpu.vector_registers // 4)
        return {"lanes": _lanes(form[1], cpu), "unroll": max(u for u in _UNROLL if u <= wanted)}

    def space(self, form: _Form, cpu: Cpu) -> Choices:
        """See `Template`."""
        lanes = _lanes(form[1], cpu)
        return {"lanes": (lanes, 2 * lanes), "unroll": _UNROLL}

    def emit(self, func: PrimFunc, form: _Form, parameters: Parameters, cpu: Cpu) -> PrimFunc:
        """See `Template`."""
        inner, found = form
        parallel = cpu.cores > 1 and worth_parallel(work_of(inner).known_flops)
        return row_program(inner, found, parallel=parallel, ahead=_leaves_l2(inner, cpu), **parameters)


def _leaves_l2(func: PrimFunc, cpu: Cpu) -> bool:
    """Whether what it reads and writes comes from beyond L2; a symbolic number of rows counts as many."""
    size = work_of(func).size_bytes
    return not isinstance(size, int) or size > cpu.l2_bytes * cpu.cores


def _lanes(found: RowFunction, cpu: Cpu) -> int:
    return min(lanes_of(stage.block, cpu) for stage in found.stages)
