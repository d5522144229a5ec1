"""Attention on a CPU: `softmax(q kᵀ + mask) v` of every head in one kernel, with no scores in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from schedules.cpu.attention import attention_plan
from schedules.cpu.attention.form import Attention as Form
from schedules.cpu.attention.form import Blocking, attention_of
from schedules.cpu.attention.loops import attention_loops
from schedules.hardware import Cpu
from schedules.ir import tir
from schedules.ir.dtypes import is_float
from schedules.ir.types import PrimFunc
from schedules.ir.work import work_of, worth_parallel
from schedules.operators import Attention
from schedules.planned import Planned
from schedules.template import Declined

__all__ = ["TiledAttention"]


class TiledAttention(Planned[Attention]):
    """`out[b, m, h, e] = sum over n of softmax over n of (q[b, m, h, :] · k[b, n, h, :] + mask) * v[b, n, h, e]`.

    Operands in any layout with contiguous values in a head, heads merged or not; sizes of the batch, queries and keys
    symbolic or not; operands of any float type, sums in that of the scores. See `attention_loops` for the loops.
    Parameters: `vectors` of queries in a block, `keys` in a register tile of scores, `rows` (at most) and `columns` of
    one of results, in vectors, `block` keys in a softmax step, `tiles` blocks of queries in a task, and `copies`,
    whether a task packs its head's values.

    The limit: 2 * queries * keys * (depth + width) operations a head at the peak of the multiply-adds, and
    queries * keys exponentials of about ten instructions a vector.
    """

    name = "cpu.attention"
    version = 1
    layout = ()
    computes = Attention

    def refusal(self, operator: Attention, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """See `Planned`."""
        if not is_float(operator.accumulate):
            return f"it sums no {operator.accumulate}"
        return attention_plan.refusal(operator, parameters, cpu)

    def space(self, operator: Attention, cpu: Cpu) -> Iterator[dict[str, int]]:
        """See `Planned`."""
        return attention_plan.points(operator, cpu)

    def estimate(self, operator: Attention, parameters: Mapping[str, int], cpu: Cpu) -> float:
        """See `Planned`."""
        return attention_plan.estimate(operator, parameters, cpu)

    def emit(self, func: PrimFunc, operator: Attention, parameters: Mapping[str, int], cpu: Cpu) -> PrimFunc | Declined:
        """See `Planned`."""
        form = attention_of(func, cpu)
        if isinstance(form, Declined):
            return form
        if _sizes(form) != (operator.queries, operator.keys, operator.depth, operator.width, operator.accumulate):
            return Declined("its plan is of other sizes")
        parallel = cpu.cores > 1 and worth_parallel(work_of(func).known_flops)
        sizes = {name: value for name, value in parameters.items() if name != "copies"}
        blocking = Blocking(
            lanes=attention_plan.lanes_of(operator, cpu),
            value_lanes=attention_plan.value_lanes_of(operator, cpu),
            copies=bool(parameters["copies"]),
            **sizes,
        )
        return func.with_body(attention_loops(form, blocking, parallel=parallel))


def _sizes(form: Form) -> tuple[int, int, int, int, str]:
    return tir.as_int(form.queries) or 0, tir.as_int(form.keys) or 0, form.depth, form.width, form.dtype
