"""Row-wise functions on a CPU (softmax, layer and RMS norm, sums): every stage of a row while it is in the cache."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir

from relaxc.schedules.cpu.common.nest import contiguous_suffix, finish_reduction, lanes_of, vectorize_partial
from relaxc.schedules.cpu.gemm.matmul import inlined
from relaxc.schedules.cpu.rows.partial_sums import PARTIAL, row_form
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import analysis, moves
from relaxc.schedules.ir.types import PrimFunc, Target, TirSchedule
from relaxc.schedules.ir.work import work_of
from relaxc.schedules.template import Choices, Declined, Parameters, Template

__all__ = ["Reduction"]


@dataclass(frozen=True)
class _Stages:
    """The stages of a row-wise function, in order; the last writes the output; `rows` leading axes are common."""

    names: list[str]
    reductions: list[str]
    rows: int


_Form = tuple[PrimFunc, _Stages]


class Reduction(Template[_Form, Cpu]):
    """`out[r, i] = f(x[r, i], reduce over j of g(x[r, j]), …)`, any number of reductions after each other.

        for r in parallel:
            each reduction: lanes[l] = reduce over j0 of g(x[r, j0 * lanes + l]);  s = reduce of lanes
            each elementwise stage in vectors

    Declines where the stages have no leading axes in common, or a reduction does not run along memory.
    """

    name = "cpu.reduction"
    version = 1

    def matched(self, func: PrimFunc, target: Target) -> _Form | Declined:
        """Return the stages, and the PrimFunc that has no others."""
        func = inlined(func)
        stages = _stages(func)
        return stages if isinstance(stages, Declined) else (func, stages)

    def default(self, form: _Form, cpu: Cpu) -> Parameters:
        """See `Template`."""
        return {"lanes": _lanes(*form, cpu)}

    def space(self, form: _Form, cpu: Cpu) -> Choices:
        """See `Template`."""
        lanes = _lanes(*form, cpu)
        return {"lanes": tuple(lanes << doubled for doubled in range(3))}

    def emit(self, func: PrimFunc, form: _Form, parameters: Parameters, cpu: Cpu) -> PrimFunc:
        """See `Template`."""
        return _schedule(*form, parameters["lanes"], cpu)


def _lanes(func: PrimFunc, stages: _Stages, cpu: Cpu) -> int:
    blocks = [nest.block for nest in analysis.nests(func) if nest is not None]
    return min(lanes_of(block, cpu) for block in blocks if block.name_hint in stages.names)


def _stages(func: PrimFunc) -> _Stages | Declined:
    nests = analysis.nests(func)
    if any(nest is None for nest in nests):
        return Declined("a statement is no plain loop nest")
    blocks = [nest.block for nest in nests if nest is not None]
    other = [b for b in blocks if not analysis.is_injective(b) and not analysis.is_reduction(b)]
    if other:
        return Declined(f"block {other[0].name_hint} is neither elementwise nor a plain reduction")
    reductions = [block for block in blocks if analysis.is_reduction(block)]
    if not reductions:
        return Declined("it reduces nothing")
    writers = [b for b in blocks if any(b.body.buffer.same_as(param) for param in func.params)]
    if writers != blocks[-1:]:
        return Declined("more than its last stage writes outputs")
    scalar = any(nest is not None and not nest.loops for nest in nests)
    rows = 0 if scalar else analysis.common_rows(blocks)
    if rows is None:
        return Declined("its stages do not have the same leading axes")
    for block in reductions:
        if not analysis.is_contiguous_over(block, [block.iter_vars[-1].var]):
            return Declined(f"block {block.name_hint} does not reduce along memory")
    return _Stages([b.name_hint for b in blocks], [b.name_hint for b in reductions], rows)


def _schedule(func: PrimFunc, stages: _Stages, lanes: int, cpu: Cpu) -> PrimFunc:
    work = work_of(func).known_flops
    partials = {}
    for name in stages.reductions:
        split = row_form(func, name, lanes)
        if split is not None:
            func, partials[name] = split, name + PARTIAL
    sch = s_tir.Schedule(func)
    last = stages.names[-1]
    row = None
    if stages.rows:
        row = moves.parallelize(sch, sch.get_loops(last)[: stages.rows], work, cpu.cores)
        for name in reversed(stages.names):
            for block in [name if name != last else None, partials.get(name)]:
                if block is not None:
                    sch.compute_at(block, row, preserve_unit_loops=True)
    for name in stages.names:
        partial = partials.get(name)
        if partial is not None:
            vectorize_partial(sch, partial)
        if name in stages.reductions:
            finish_reduction(sch, name)
        else:
            _finish_elementwise(sch, name, lanes, stages.rows)
    return sch.mod["main"]


def _finish_elementwise(sch: TirSchedule, name: str, lanes: int, rows: int) -> None:
    block, loops = sch.get(sch.get_sblock(name)), sch.get_loops(name)
    if not loops or len(block.iter_vars) <= rows:
        return
    suffix, contiguous = contiguous_suffix(block, rows)
    inner = moves.fuse_all(sch, loops[len(loops) - suffix :])
    if contiguous:
        moves.vectorize_inner(sch, inner, lanes)
