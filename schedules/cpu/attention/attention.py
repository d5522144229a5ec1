"""Attention on a CPU: `softmax(q kᵀ + mask) v` of every head in one kernel, with no scores in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from relaxc.schedules.cpu.attention import attention_plan, word_exponential, word_plan
from relaxc.schedules.cpu.attention.form import Attention as Form
from relaxc.schedules.cpu.attention.form import Blocking, attention_of
from relaxc.schedules.cpu.attention.loops import Plain, Task, attention_loops
from relaxc.schedules.cpu.attention.word_products import ByTiles, ByVectors
from relaxc.schedules.cpu.attention.word_queries import InWords
from relaxc.schedules.cpu.common.tile_registers import MATRIX
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.ir.work import work_of, worth_parallel
from relaxc.schedules.operators import Attention
from relaxc.schedules.planned import Planned
from relaxc.schedules.template import Declined

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
    kernel = "attention"

    def refusal(self, operator: Attention, parameters: Mapping[str, int], cpu: Cpu) -> str:
        """See `Planned`."""
        if not is_float(operator.accumulate):
            return f"it sums no {operator.accumulate}"
        if word_plan.is_of_words(parameters):
            return word_plan.refusal(operator, parameters, cpu)
        return attention_plan.refusal(operator, parameters, cpu)

    def default(self, operator: Attention, cpu: Cpu) -> Mapping[str, int]:
        """See `Planned`: on pairs of 16 bits where the estimates say that it is faster."""
        found = (attention_plan.default(operator, cpu), word_plan.default(operator, cpu))
        points = [point for point in found if point is not None]
        return min(points, key=lambda point: self.estimate(operator, point, cpu))

    def space(self, operator: Attention, cpu: Cpu) -> Iterator[dict[str, int]]:
        """See `Planned`."""
        yield from attention_plan.points(operator, cpu)
        yield from word_plan.points(operator, cpu)

    def estimate(self, operator: Attention, parameters: Mapping[str, int], cpu: Cpu) -> float:
        """See `Planned`."""
        if word_plan.is_of_words(parameters):
            return word_plan.estimate(operator, parameters, cpu)
        return attention_plan.estimate(operator, parameters, cpu)

    def emit(self, func: PrimFunc, operator: Attention, parameters: Mapping[str, int], cpu: Cpu) -> PrimFunc | Declined:
        """See `Planned`."""
        form = attention_of(func, cpu)
        if isinstance(form, Declined):
            return form
        if _sizes(form) != (operator.queries, operator.keys, operator.depth, operator.width, operator.accumulate):
            return Declined("its plan is of other sizes")
        parallel = cpu.cores > 1 and worth_parallel(work_of(func).known_flops)
        if word_plan.is_of_words(parameters):
            task = _in_words(form, operator, parameters, cpu)
            if task is None:
                return Declined("the target has no instruction for its plan")
        else:
            task = _plain(form, operator, parameters, cpu)
        return func.with_body(attention_loops(form, task, parallel=parallel))


def _plain(form: Form, operator: Attention, parameters: Mapping[str, int], cpu: Cpu) -> Task:
    sizes = {name: value for name, value in parameters.items() if name != "copies"}
    lanes, value_lanes = attention_plan.lanes_of(operator, cpu), attention_plan.value_lanes_of(operator, cpu)
    copies = bool(parameters["copies"])
    return Plain(form, Blocking(lanes=lanes, value_lanes=value_lanes, copies=copies, **sizes))


def _in_words(form: Form, operator: Attention, parameters: Mapping[str, int], cpu: Cpu) -> Task | None:
    matrix = parameters.get(MATRIX)
    dot = word_plan.instruction_of(operator, cpu, tiles=matrix is not None)
    if dot is None:
        return None
    fast = word_exponential.is_for(cpu, cpu.lanes(operator.sum_bits))
    product = ByVectors(dot, operator.accumulate, fast=fast) if matrix is None else ByTiles(dot, matrix, fast=fast)
    return InWords(form, word_plan.blocking(operator, parameters, cpu), product)


def _sizes(form: Form) -> tuple[int, int, int, int, str]:
    return tir.as_int(form.queries) or 0, tir.as_int(form.keys) or 0, form.depth, form.width, form.dtype
