"""Reading a PrimFunc that reduces nothing back from its result to its operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import tirx
from tvm.ir import Call, TensorLoad

from relaxc.schedules.cuda.common.expression import Unsupported
from relaxc.schedules.cuda.common.sizes import buffers_of, known_or, symbols_of, unbound_size
from relaxc.schedules.cuda.elementwise.axes import coalesced
from relaxc.schedules.cuda.elementwise.form import Form, Guard, Operand, Step, simplify_where
from relaxc.schedules.ir import analysis, positions, tir
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, SBlock, Size, Var
from relaxc.schedules.template import Declined

__all__ = ["Reader", "is_whole", "match", "unfit"]

_MOST_ELEMENTS = (1 << 31) - (1 << 20)
"""Of a buffer: positions, and those of threads behind the end, are 32-bit numbers."""
_MOST_STEPS = 200


def match(func: PrimFunc) -> Form | Declined:
    """Return what `func` computes, or why it is nothing that these templates take."""
    if reason := unfit(func):
        return Declined(reason)
    if analysis.has_reduction(func):
        return Declined("it reduces")
    try:
        return _form_of(func)
    except Unsupported as error:
        return Declined(str(error))


def unfit(func: PrimFunc) -> str:
    """Return why texts of positions, of 32 bits where sizes are known, do not do for what `func` is given, or ''."""
    if reason := unbound_size(func):
        return reason
    buffers = buffers_of(func)
    counts = [tir.as_int(tir.product(list(buffer.shape))) for buffer in buffers]
    if any(count is not None and not 0 < count < _MOST_ELEMENTS for count in counts):
        return "an operand has no elements, or 2^31"
    if any(tir.as_int(buffer.elem_offset) not in (None, 0) or len(buffer.strides) for buffer in buffers):
        return "an operand is not contiguous"
    return ""


def _form_of(func: PrimFunc) -> Form:
    """The form, with its axes cut and joined. Raise Unsupported."""
    nests = analysis.nests(func)
    blocks = [nest.block for nest in nests if nest is not None and analysis.is_injective(nest.block) and is_whole(nest)]
    if len(blocks) != len(nests):
        raise Unsupported("its blocks are not one store each to every element")
    stores: dict[Buffer, SBlock] = {block.body.buffer: block for block in blocks}
    outputs = [buffer for buffer in buffers_of(func) if buffer in stores]
    if len(outputs) != 1 or len(stores) != len(blocks):
        raise Unsupported(f"it writes {len(outputs)} results, not one")
    (out,) = outputs
    shape = [known_or(dim) for dim in out.shape]
    axes = [tir.fresh(f"a{i}") for i in range(len(shape))]
    reader = Reader(buffers_of(func), stores, out, dict(zip(axes, shape, strict=True)))
    value = reader.value_at(stores[out], axes)
    place = tir.flatten(axes, shape)
    form = Form(
        out, tuple(axes), tuple(shape), place, tuple(reader.operands), tuple(reader.steps), value, symbols_of(func)
    )
    return coalesced(form)


class Reader:
    """Follows values back to the operands: every block in between is a step. `bounds` has the axes' extents."""

    def __init__(
        self, params: Sequence[Buffer], stores: Mapping[Buffer, SBlock], out: Buffer, bounds: Mapping[Var, Size]
    ) -> None:
        self.params, self.stores, self.out, self.bounds = params, stores, out, bounds
        self.operands: list[Operand] = []
        self.steps: list[Step] = []
        self.known: list[tuple[Buffer, list[Expr], tuple[Guard, ...], Var]] = []
        self.open: list[Buffer] = []
        self.named = 0

    def value_at(self, block: SBlock, indices: Sequence[Expr]) -> Expr:
        """Return what a block stores at these indices, of operands, steps and axes. Raise Unsupported."""
        return self._of_block(block, indices, ())

    def value_of(self, expr: Expr) -> Expr:
        """Return `expr` with variables for what it loads. Raise Unsupported."""
        return self._read(expr, ())

    def reduced(self, block: SBlock, indices: Sequence[Expr]) -> Var:
        """Return the variable of what a block reduces to these indices. Raise Unsupported."""
        raise Unsupported("it reduces")

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
        indices = [positions.simplify(self._read(index, guards), self.bounds) for index in load.indices]
        for buffer, others, where, var in self.known:
            if buffer.same_as(load.source) and where == guards[: len(where)] and all(map(tir.same, others, indices)):
                return var
        self.named += 1
        var = tirx.Var(f"step{self.named}", str(load.source.dtype))
        if self.named > _MOST_STEPS:
            raise Unsupported(f"it reads more than {_MOST_STEPS} values")
        behind = self.stores.get(load.source)
        if behind is not None and behind.init is not None:
            return self.reduced(behind, indices)
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


def is_whole(nest: analysis.Nest) -> bool:
    """Return whether a block writes, or reduces into, every element of its buffer, at its plain axes."""
    block = nest.block
    if any(tir.as_int(iv.dom.min) != 0 or str(iv.var.ty.dtype) != tir.INDEX for iv in block.iter_vars):
        return False
    extents = {iv.var: iv.dom.extent for iv in block.iter_vars}
    if any(tir.as_int(loop.min) != 0 for loop in nest.loops):
        return False
    turns = [loop.extent for loop in nest.loops] or [1] * len(extents)
    if not all(map(_is_same, extents.values(), turns)):
        return False
    for index, dim in zip(block.body.indices, block.body.buffer.shape, strict=True):
        written = extents.get(index) if isinstance(index, tirx.Var) else 1 if tir.as_int(index) == 0 else None
        if written is None or not _is_same(written, dim):
            return False
    return True


def _is_same(a: Size, b: Size) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return tir.as_int(a) == tir.as_int(b)
    return tir.same(a, b) or tir.same_size(a, b)
