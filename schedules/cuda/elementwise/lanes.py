"""A form as CUDA text for vectors: `LANES` neighbours along the last axis at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tvm import tirx

from relaxc.schedules.cuda.common.expression import LOW, SHORT
from relaxc.schedules.cuda.common.sizes import divided
from relaxc.schedules.cuda.elementwise.form import Form, Guard, Operand, Step
from relaxc.schedules.cuda.elementwise.values import TYPES, Values, held
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Buffer, Expr, Size, Var

__all__ = ["Access", "Lanes", "buffers_of"]


@dataclass(frozen=True)
class Access:
    """How the lanes of a vector read an operand: the same element, neighbours, or each its own.

    `together` are the elements of one load: neighbours that are aligned to as many.
    """

    kind: Literal["same", "neighbours", "own"]
    together: int = 1


def buffers_of(form: Form) -> list[Buffer]:
    """Return the buffers that the form reads, each once."""
    found: list[Buffer] = []
    for operand in form.operands:
        if not any(operand.buffer.same_as(other) for other in found):
            found.append(operand.buffer)
    return found


class Lanes:
    """Writes the text of a form for vectors of `lanes`; those operands that are `staged` are read by the kernel.

    Raise Unsupported where an expression has no text.
    """

    arguments = "const Loaded& in, const Place& at"
    """The parameters of the function `result` in the text."""

    def __init__(self, form: Form, lanes: int, *, staged: Collection[int] = ()) -> None:
        self.form, self.lanes = form, lanes
        self._column = form.axes[-1] if form.axes else None
        self._first, self._lane = tir.fresh("first"), tir.fresh("lane")
        self._bounds = dict(form.bounds)
        if self._column is not None:
            self._bounds |= {self._first: divided(self._bounds.pop(self._column), lanes), self._lane: lanes}
        self._buffers = buffers_of(form)
        self._staged = staged
        self._steps = {step.var: step for step in form.steps}
        self._known: dict[Var, bool] = {}
        self.accesses: dict[Var, Access] = {}
        for at, operand in enumerate(form.operands):
            access = Access("own") if at in staged else self._access(operand)
            self.accesses[operand.var] = access
            self._known[operand.var] = access.kind != "same"
        fast = str(form.out.dtype) in LOW
        bounds = form.bounds
        self._of_one = {
            lane: (
                Values(bounds, partial(self._var, lane=lane, inline=True), fast=fast, symbols=form.symbols),
                Values(bounds, partial(self._var, lane=lane, inline=False), fast=fast, symbols=form.symbols),
            )
            for lane in ("0", "l")
        }

    def text(self) -> str:
        """Return the structs `Place`, `Operands` and `Loaded`, and the functions `place_of`, `read` and `result`."""
        return f"{self.operands()}{self.place()}{self._loaded()}{self._place_of()}{self._read()}{self._result()}"

    def operands(self) -> str:
        """Return the struct `Operands`: pointers, and how many vectors and which sizes there are at the call."""
        fields = "".join(f"  const void* p{i};\n" for i in range(len(self._buffers)))
        if self.form.symbols:
            fields += f"  long long total, {', '.join(f's{i}' for i in range(len(self.form.symbols)))};\n"
        return f"struct Operands {{\n{fields}}};\n"

    def place(self) -> str:
        """Return the struct `Place`: the axes, and the sizes that positions are made of."""
        dims, symbols = max(1, len(self.form.axes)), len(self.form.symbols)
        if not symbols:
            return f"struct Place {{ int x[{dims}]; }};\n"
        return f"struct Place {{ long long x[{dims}], s[{symbols}]; }};\n"

    def sizes_at(self) -> str:
        """Return the statements that give a place its sizes."""
        return "".join(f"  at.s[{i}] = operands.s{i};\n" for i in range(len(self.form.symbols)))

    def split(self, axis: int, size: Size, times: int) -> str:
        """Return the statements that take an axis of `size` off the position `rest`, a step of which is `times`."""
        by = f" * {times}" if times > 1 else ""
        if self.form.symbols:
            return f"  at.x[{axis}] = split(rest, {self.size(size)}){by};\n"
        return f"  at.x[{axis}] = (int)(rest % {size}u){by};\n  rest /= {size}u;\n"

    def size(self, size: Size) -> str:
        """Return the text of a size."""
        return str(size) if isinstance(size, int) else self._of_one["0"][0].text(size)

    def pointer(self, operand: Operand) -> str:
        """Return the text of the pointer to an operand."""
        found = next(i for i, buffer in enumerate(self._buffers) if buffer.same_as(operand.buffer))
        return f"operands.p{found}"

    def position(self, expr: Expr, lane: str = "0") -> str:
        """Return the text of a position or a condition of the place `at`, for its lane `l` or its first."""
        return self._of_one[lane][0].text(expr)

    def condition(self, guards: tuple[Guard, ...], lane: str = "0") -> str:
        """Return the text of what must hold for a read."""
        parts = [self.position(guard.condition, lane) for guard in guards]
        return " && ".join(p if guard.holds else f"!({p})" for p, guard in zip(parts, guards, strict=True))

    def _loaded(self) -> str:
        fields = []
        for i, operand in enumerate(self.form.operands):
            access = self.accesses[operand.var]
            count = 1 if access.kind == "same" else self.lanes
            held(str(operand.buffer.dtype))
            fields.append(f"  Vector<{TYPES[str(operand.buffer.dtype)]}, {count}, {access.together}> v{i};\n")
        return f"struct Loaded {{\n{''.join(fields)}}};\n"

    def _place_of(self) -> str:
        lines = ["  Count rest = vector;\n"]
        for axis in reversed(range(1, len(self.form.axes))):
            lanes = self.lanes if axis == len(self.form.axes) - 1 else 1
            lines.append(self.split(axis, divided(self.form.sizes[axis], lanes), lanes))
        times = f" * {self.lanes}" if len(self.form.axes) == 1 else ""
        total = tir.as_int(tir.product(list(self.form.sizes)))
        place = "long long" if self.form.symbols else "int"
        count = "operands.total" if total is None else str(total // self.lanes)
        return (
            f"typedef unsigned {'long long' if self.form.symbols else 'int'} Count;\n"
            f"DEV Count total_of(const Operands& operands) {{ return {count}; }}\n"
            f"DEV Place place_of(Count vector, const Operands& operands) {{\n  Place at;\n{self.sizes_at()}"
            f"{''.join(lines)}  at.x[0] = ({place})rest{times};\n  return at;\n}}\n"
        )

    def _read(self) -> str:
        lines = []
        for i, operand in enumerate(self.form.operands):
            if i not in self._staged:
                lines.append(self._read_one(i, operand))
        return f"DEV void read(Loaded& in, const Place& at, const Operands& operands) {{\n{''.join(lines)}}}\n"

    def _read_one(self, i: int, operand: Operand) -> str:
        access, pointer = self.accesses[operand.var], self.pointer(operand)
        clear = f"  in.v{i}.clear();\n" if operand.guards else ""
        if access.kind == "own":
            condition = f"if ({self.condition(operand.guards, 'l')}) " if operand.guards else ""
            read = f"in.v{i}.read_lane(l, {pointer}, {self.position(operand.at, 'l')});"
            return f"{clear}#pragma unroll\n  for (int l = 0; l < {self.lanes}; l++) {condition}{read}\n"
        condition = f"if ({self.condition(operand.guards)}) " if operand.guards else ""
        return f"{clear}  {condition}in.v{i}.read({pointer}, {self.position(operand.at)});\n"

    def _result(self) -> str:
        dtype = str(self.form.out.dtype)
        before, inside = self.written(self.form.steps)
        value, c_type = self._moved(self.form.value), TYPES[dtype]
        if value is None:
            value, c_type = self._of_one["l"][1].unrounded(self._last()), held(dtype)
        return (
            f"DEV void result(Out* to, {self.arguments}) {{\n{before}  {c_type} made[{self.lanes}];\n"
            f"#pragma unroll\n  for (int l = 0; l < {self.lanes}; l++) {{\n{inside}    made[l] = {value};\n  }}\n"
            f"  store_lanes<{self.lanes}>(to, made);\n}}\n"
        )

    def written(self, steps: Sequence[Step]) -> tuple[str, str]:
        """Return the text of the steps that all lanes share, and of those inside the loop over the lanes."""
        texts = {"0": "", "l": ""}
        for step in steps:
            lane = "l" if self._varies(step.var) else "0"
            indent = "    " if lane == "l" else "  "
            value = self._of_one[lane][1].text(step.value)
            texts[lane] += f"{indent}const {held(step.dtype)} {step.var.name} = {value};\n"
        return texts["0"], texts["l"]

    def _moved(self, value: Expr) -> str | None:
        """The text of what is an element of one operand or another, as it is in memory."""
        if isinstance(value, tirx.Select):
            yes, no = self._moved(value.true_value), self._moved(value.false_value)
            return f"({self._of_one['l'][1].text(value.condition)} ? {yes} : {no})" if yes and no else None
        if not isinstance(value, tirx.Var) or value in self.form.bounds:
            return None
        if value in self._steps:
            return self._moved(self._steps[value].value)
        return self._element(value, "l")

    def _last(self) -> Expr:
        """What the result is made of last: its rounding is left to the store."""
        value = self.form.value
        while isinstance(value, tirx.Var) and value in self._steps:
            value = self._steps[value].value
        return value

    def _var(self, var: Var, lane: str, *, inline: bool) -> str:
        """The text of a variable: an axis, an operand, or a step, which is written out where positions need it."""
        if self._column is not None and var.same_as(self._column):
            text = f"at.x[{len(self.form.axes) - 1}]"
            return f"({text} + l)" if lane == "l" else text
        for i, axis in enumerate(self.form.axes):
            if var.same_as(axis):
                return f"at.x[{i}]"
        for i, symbol in enumerate(self.form.symbols):
            if var.same_as(symbol):
                return f"at.s[{i}]"
        if var in self._steps:
            return self._of_one[lane][0].text(self._steps[var].value) if inline else str(var.name)
        element = self._element(var, lane)
        return f"widen({element})" if str(var.ty.dtype) in SHORT else element

    def _element(self, var: Var, lane: str) -> str:
        (i,) = (i for i, operand in enumerate(self.form.operands) if operand.var.same_as(var))
        return f"in.v{i}[{lane if self.accesses[var].kind != 'same' else '0'}]"

    def _varies(self, expr: Expr) -> bool:
        """Whether the lanes may have different values of `expr`."""
        return any(self._var_varies(var) for var in tir.variables(expr))

    def _var_varies(self, var: Var) -> bool:
        if self._column is not None and var.same_as(self._column):
            return True
        if var in self._steps and var not in self._known:
            self._known[var] = self._varies(self._steps[var].value)
        return self._known.get(var, False)

    def _reads_varying(self, expr: Expr) -> bool:
        return any(self._var_varies(var) for var in tir.variables(expr) if var not in self.form.bounds)

    def _access(self, operand: Operand) -> Access:
        if self._column is None or self.lanes == 1:
            return Access("neighbours")
        if self._reads_varying(operand.at) or not all(self._is_same(g.condition) for g in operand.guards):
            return Access("own")
        first, step = self._over_lanes(operand.at)
        if tir.as_int(step) == 0:
            return Access("same")
        if not tir.same_var(step, self._lane):
            return Access("own")
        together = self.lanes
        while together > 1 and tir.as_int(tir.simplify(tirx.floormod(first, together), self._bounds)) != 0:
            together //= 2
        return Access("neighbours", together)

    def _over_lanes(self, at: Expr) -> tuple[Expr, Expr]:
        """`at` of the first lane, and how far from there that of lane `lane` is."""
        zeroth = self._first * self.lanes
        first = tir.simplify(tir.substitute(at, {self._column: zeroth}), self._bounds)
        other = tir.substitute(at, {self._column: zeroth + self._lane})
        return first, tir.simplify(other - first, self._bounds)

    def _is_same(self, condition: Expr) -> bool:
        """Whether all lanes of a vector have the same value of `condition`."""
        if not self._varies(condition):
            return True
        if self._reads_varying(condition):
            return False
        if isinstance(condition, tirx.And | tirx.Or):
            return self._is_same(condition.a) and self._is_same(condition.b)
        if isinstance(condition, tirx.Not):
            return self._is_same(condition.a)
        if isinstance(condition, tirx.LT | tirx.GE):  # a < b, or not
            return self._keeps_sign(condition.a - condition.b)
        if isinstance(condition, tirx.GT | tirx.LE):  # b < a, or not
            return self._keeps_sign(condition.b - condition.a)
        if isinstance(condition, tirx.EQ | tirx.NE) and str(condition.a.ty.dtype) == tir.INDEX:
            return tir.as_int(self._over_lanes(condition.a - condition.b)[1]) == 0
        return False

    def _keeps_sign(self, difference: Expr) -> bool:
        """Whether `difference < 0` is the same for all lanes."""
        if str(difference.ty.dtype) != tir.INDEX:
            return False
        first, step = self._over_lanes(difference)
        if tir.as_int(step) == 0:
            return True
        zero = tir.simplify(step - self._lane, self._bounds), tir.simplify(step + self._lane, self._bounds)
        if tir.as_int(zero[0]) == 0:
            return tir.as_int(tir.simplify(tirx.floormod(first, self.lanes), self._bounds)) == 0
        if tir.as_int(zero[1]) == 0:
            return tir.as_int(tir.simplify(tirx.floormod(first + 1, self.lanes), self._bounds)) == 0
        return False
