"""Row-wise functions found in a PrimFunc: stages over common leading axes, each along contiguous memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from relaxc.schedules.cpu.rows.partial_sums import operator_of
from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, SBlock, Size, Var
from relaxc.schedules.ir.work import is_expensive
from relaxc.schedules.template import Declined

__all__ = ["RowFunction", "Stage", "row_function"]


@dataclass(frozen=True)
class Stage:
    """One block of a row-wise function.

    `rows` are its variables of the common leading axes. The rest that are longer than 1 are `outer`, which are
    looped over, and `flat`, along which every access is contiguous; neither has any in a scalar of a row. A reduction
    has `operator`: its op and the term that it reduces.
    """

    block: SBlock
    rows: tuple[Var, ...]
    ones: tuple[Var, ...]
    outer: tuple[Var, ...]
    flat: tuple[Var, ...]
    operator: tuple[type, Expr] | None

    @property
    def buffer(self) -> Buffer:
        """What it writes."""
        return self.block.body.buffer

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The extents of `outer` and of `flat`."""
        extents = {iv.var: tir.as_int(iv.dom.extent) or 0 for iv in self.block.iter_vars}
        return tuple(extents[var] for var in self.outer), tuple(extents[var] for var in self.flat)

    @property
    def is_scalar(self) -> bool:
        """Whether it computes one number of a row from others."""
        return not self.outer and not self.flat and self.operator is None

    @property
    def evaluates(self) -> bool:
        """Whether it calls a function or divides for each element, and not once a row."""
        nodes = [call for call in tir.collect(self.value, (ir.Call, tirx.Div)) if is_expensive(call)]
        return any(tir.uses(node, (*self.outer, *self.flat)) for node in nodes)

    @property
    def value(self) -> Expr:
        """The term that it reduces, or what it stores."""
        return self.block.body.value if self.operator is None else self.operator[1]


@dataclass(frozen=True)
class RowFunction:
    """The stages, in order, and the extents of the rows' axes; the last stage writes the result."""

    stages: tuple[Stage, ...]
    extents: tuple[Size, ...]

    @property
    def last(self) -> Stage:
        """The stage that writes the result."""
        return self.stages[-1]

    def writer(self, buffer: Buffer) -> Stage | None:
        """Return the stage that writes an intermediate `buffer`."""
        return next((stage for stage in self.stages[:-1] if stage.buffer.same_as(buffer)), None)


def row_function(func: PrimFunc) -> RowFunction | Declined:
    """Return the row-wise function that `func`, whose elementwise stages are inlined, computes."""
    nests = analysis.nests(func)
    blocks = [nest.block for nest in nests if nest is not None]
    if len(blocks) != len(nests):
        return Declined("a statement is no plain loop nest")
    other = [b for b in blocks if not analysis.is_injective(b) and not analysis.is_reduction(b)]
    if other:
        return Declined(f"block {other[0].name_hint} is neither elementwise nor a plain reduction")
    if not any(analysis.is_reduction(block) for block in blocks):
        return Declined("it reduces nothing")
    writers = [b for b in blocks if any(b.body.buffer.same_as(param) for param in func.params)]
    if writers != blocks[-1:]:
        return Declined("more than its last stage writes outputs")
    rows = analysis.common_rows(blocks)
    if rows is None:
        return Declined("its stages do not have the same leading axes")
    stages = []
    for block in blocks:
        stage = _stage(block, rows)
        if isinstance(stage, Declined):
            return stage
        stages.append(stage)
    extents = tuple(iv.dom.extent for iv in blocks[-1].iter_vars[:rows])
    found = RowFunction(tuple(stages), extents)
    return found if _stays_in_its_row(found) else Declined("a stage reads another row of an earlier one")


def _stage(block: SBlock, rows: int) -> Stage | Declined:
    name = block.name_hint
    inner = [iv for iv in block.iter_vars[rows:] if tir.as_int(iv.dom.extent) != 1]
    if any(tir.as_int(iv.dom.extent) is None for iv in inner):
        return Declined(f"the axes of block {name} are symbolic")
    if any(tir.as_int(iv.dom.extent) == 0 for iv in inner):
        return Declined(f"block {name} has nothing to compute")
    operator = None
    if analysis.is_reduction(block):
        operator = operator_of(block)
        if operator is None:
            return Declined(f"block {name} is no sum, product, minimum or maximum")
        if not all(analysis.reduces(iv) for iv in inner):
            return Declined(f"block {name} reduces over columns")
    axes = tuple(iv.var for iv in inner)
    count = 0
    while count < len(axes) and analysis.is_contiguous_over(block, axes[len(axes) - count - 1 :]):
        count += 1
    if axes and not count:
        return Declined(f"block {name} does not run along memory")
    at = len(axes) - count
    ones = tuple(iv.var for iv in block.iter_vars[rows:] if tir.as_int(iv.dom.extent) == 1)
    row_vars = tuple(iv.var for iv in block.iter_vars[:rows])
    return Stage(block, row_vars, ones, axes[:at], axes[at:], operator)


def _stays_in_its_row(function: RowFunction) -> bool:
    for stage in function.stages:
        for load in tir.loads(stage.block.body.value):
            writer = function.writer(load.source)
            if writer is not None and not _leads_with(load.indices, stage.rows):
                return False
        if stage is not function.last and not _leads_with(stage.block.body.indices, stage.rows):
            return False
    return True


def _leads_with(indices: Sequence[Expr], variables: tuple[Var, ...]) -> bool:
    leading = list(indices)[: len(variables)]
    return len(leading) == len(variables) and all(map(tir.same_var, leading, variables))
