"""Reading a PrimFunc that reduces nothing back from its result to its operands."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Call, TensorLoad

from relaxc.schedules.cuda.common.expression import Unsupported
from relaxc.schedules.cuda.elementwise.axes import coalesced
from relaxc.schedules.cuda.elementwise.form import Form, Guard, Operand, Step, simplify_where
from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, SBlock, Var
from relaxc.schedules.template import Declined

__all__ = ["match"]

_MOST_ELEMENTS = (1 << 31) - (1 << 20)
"""Of a buffer: positions, and those of threads behind the end, are 32-bit numbers."""
_MOST_STEPS = 200


def match(func: PrimFunc) -> Form | Declined:
    """Return what `func` computes, or why it is nothing that these templates take."""
    if any(tir.as_int(dim) is None for buffer in func.params for dim in getattr(buffer, "shape", (None,))):
        return Declined("its sizes are symbolic")
    counts = [int(tir.product(list(buffer.shape))) for buffer in func.params]
    if any(not 0 < count < _MOST_ELEMENTS for count in counts):
        return Declined("an operand has no elements, or 2^31")
    if any(tir.as_int(buffer.elem_offset) not in (None, 0) or len(buffer.strides) for buffer in func.params):
        return Declined("an operand is not contiguous")
    if analysis.has_reduction(func):
        return Declined("it reduces")
    try:
        return _Reader(func).read()
    except Unsupported as error:
        return Declined(str(error))


class _Reader:
    """Follows the result back to the operands: every block in between is a step."""

    def __init__(self, func: PrimFunc) -> None:
        nests = analysis.nests(func)
        blocks = [nest.block for nest in nests if nest is not None and _is_whole(nest)]
        variables = [iv.var for block in blocks for iv in block.iter_vars]
        if len(blocks) != len(nests) or any(str(var.ty.dtype) != tir.INDEX for var in variables):
            raise Unsupported("its blocks are not one store each to every element")
        self.stores: dict[Buffer, SBlock] = {block.body.buffer: block for block in blocks}
        outputs = [buffer for buffer in func.params if buffer in self.stores]
        if len(outputs) != 1 or len(self.stores) != len(blocks):
            raise Unsupported(f"it writes {len(outputs)} results, not one")
        (self.out,) = outputs
        self.params = list(func.params)
        self.operands: list[Operand] = []
        self.steps: list[Step] = []
        self.known: list[tuple[Buffer, list[Expr], tuple[Guard, ...], Var]] = []
        self.open: list[Buffer] = []
        self.named = 0

    def read(self) -> Form:
        """Return the form, with its axes cut and joined. Raise Unsupported."""
        shape = [int(dim) for dim in self.out.shape]
        axes = [tir.fresh(f"a{i}") for i in range(len(shape))]
        self.bounds = dict(zip(axes, shape, strict=True))
        value = self._of_block(self.stores[self.out], axes, ())
        place = tir.flatten(axes, shape)
        form = Form(self.out, tuple(axes), tuple(shape), place, tuple(self.operands), tuple(self.steps), value)
        return coalesced(form)

    def _of_block(self, block: SBlock, indices: Sequence[Expr], guards: tuple[Guard, ...]) -> Expr:
        values: dict[Var, Expr] = {iv.var: tir.zero(iv.var) for iv in block.iter_vars}
        for index, wanted in zip(block.body.indices, indices, strict=True):
            if isinstance(index, tirx.Var):
                values[index] = wanted
        return self._read(tir.substitute(block.body.value, values), guards)

    def _read(self, expr: Expr, guards: tuple[Guard, ...]) -> Expr:
        """`expr` with variables for what it loads."""
        if isinstance(expr, TensorLoad):
            return self._load(expr, guards)
        if not tir.loads(expr):
            return expr
        if tir.is_if_then_else(expr) or isinstance(expr, tirx.Select):
            parts = expr.args if isinstance(expr, Call) else (expr.condition, expr.true_value, expr.false_value)
            condition = self._read(parts[0], guards)
            yes, no = (
                self._read(part, self._guarded(expr, condition, guards, i == 0)) for i, part in enumerate(parts[1:])
            )
            return tirx.Select(condition, yes, no)
        if isinstance(expr, tirx.And | tirx.Or):
            left = self._read(expr.a, guards)
            right = self._read(expr.b, (*guards, Guard(left, isinstance(expr, tirx.And))))
            return type(expr)(left, right)
        return self._rebuilt(expr, guards)

    def _guarded(self, expr: Expr, condition: Expr, guards: tuple[Guard, ...], holds: bool) -> tuple[Guard, ...]:
        """Both values of a select may be read unless its condition is one of the indices."""
        own = [var for var in tir.variables(condition) if var not in self.bounds]
        if isinstance(expr, tirx.Select) and own:
            return guards
        return (*guards, Guard(condition, holds))

    def _rebuilt(self, expr: Expr, guards: tuple[Guard, ...]) -> Expr:
        if isinstance(expr, tirx.Cast):
            return tirx.Cast(str(expr.ty.dtype), self._read(expr.value, guards))
        if isinstance(expr, tirx.Not):
            return tirx.Not(self._read(expr.a, guards))
        if isinstance(expr, Call):
            return Call(expr.op, [self._read(arg, guards) for arg in expr.args], expr.attrs, ret_ty=expr.ty)
        if hasattr(expr, "a") and hasattr(expr, "b"):
            return type(expr)(self._read(expr.a, guards), self._read(expr.b, guards))
        raise Unsupported(f"it has {type(expr).__name__}")

    def _load(self, load: TensorLoad, guards: tuple[Guard, ...]) -> Var:
        indices = [tir.simplify(self._read(index, guards), self.bounds) for index in load.indices]
        for buffer, others, where, var in self.known:
            if buffer.same_as(load.source) and where == guards[: len(where)] and all(map(tir.same, others, indices)):
                return var
        self.named += 1
        var = tirx.Var(f"step{self.named}", str(load.source.dtype))
        if self.named > _MOST_STEPS:
            raise Unsupported(f"it reads more than {_MOST_STEPS} values")
        behind = self.stores.get(load.source)
        if behind is None:
            if not any(load.source.same_as(param) for param in self.params):
                raise Unsupported("it reads what is nowhere written")
            at = simplify_where(tir.flatten(indices, list(load.source.shape)), self.bounds, guards)
            self.operands.append(Operand(var, load.source, at, guards))
        else:
            if load.source.same_as(self.out) or any(load.source.same_as(buffer) for buffer in self.open):
                raise Unsupported("it reads what it writes")
            self.open.append(load.source)
            self.steps.append(Step(var, self._of_block(behind, indices, guards), str(load.source.dtype)))
            self.open.pop()
        self.known.append((load.source, indices, guards, var))
        return var


def _is_whole(nest: analysis.Nest) -> bool:
    """Whether an injective block writes every element of its buffer, at its plain axes."""
    block = nest.block
    if not analysis.is_injective(block) or any(tir.as_int(iv.dom.min) != 0 for iv in block.iter_vars):
        return False
    extents = {iv.var: tir.as_int(iv.dom.extent) for iv in block.iter_vars}
    turns = [tir.as_int(loop.extent) if tir.as_int(loop.min) == 0 else None for loop in nest.loops]
    if list(extents.values()) != (turns or [1] * len(extents)):
        return False
    for index, dim in zip(block.body.indices, block.body.buffer.shape, strict=True):
        written = extents.get(index) if isinstance(index, tirx.Var) else 1 if tir.as_int(index) == 0 else None
        if written is None or written != tir.as_int(dim):
            return False
    return True
