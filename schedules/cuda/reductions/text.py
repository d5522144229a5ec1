"""The CUDA text of reductions: a struct for each space of members, one for each sum, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from relaxc.schedules.cuda.common.kernel import text_of
from relaxc.schedules.cuda.common.sizes import divided
from relaxc.schedules.cuda.elementwise.form import Operand
from relaxc.schedules.cuda.elementwise.lanes import Lanes, buffers_of
from relaxc.schedules.cuda.elementwise.values import TYPES, Values, held
from relaxc.schedules.cuda.reductions.form import Reductions, Sum, steps_for
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import Buffer, Expr, Size, Var

__all__ = ["Members", "at_call", "buffers", "sizes_of", "source"]


def buffers(form: Reductions) -> list[Buffer]:
    """Return the buffers that the kernel reads, each once."""
    found: list[Buffer] = []
    for space in form.spaces:
        found += [each for each in buffers_of(space.form) if not any(each.same_as(other) for other in found)]
    return found


class Members(Lanes):
    """Writes one space, whose vectors have `lanes` neighbours. Raise Unsupported where an expression has no text."""

    arguments = "const Terms& in, const Rest& rest, const Place& at, const Sums& sums"

    def __init__(self, form: Reductions, index: int, lanes: int, given: Sequence[Buffer]) -> None:
        self.whole, self.index, self.space = form, index, form.spaces[index]
        self._of_groups = {each.var: form.across for each in form.sums}
        super().__init__(self.space.form, lanes)
        self._known.update(self._of_groups)
        self._buffers = list(given)
        steps = steps_for(self.form, form.terms_of(index))
        used = [*form.terms_of(index), *(step.value for step in steps)]
        self._in_terms = [self._is_read(operand, used, i) for i, operand in enumerate(self.form.operands)]

    def _is_read(self, operand: Operand, used: Sequence[Expr], at: int) -> bool:
        """Whether the terms need an operand: by its value, or to read another one."""
        later = [other for i, other in enumerate(self.form.operands) if i > at]
        addresses = [
            e for o in later if tir.uses(list(used), [o.var]) for e in (o.at, *(g.condition for g in o.guards))
        ]
        return bool(tir.uses([*used, *addresses], [operand.var]))

    @property
    def term_bytes(self) -> int:
        """The bytes of what the terms read of a vector, as C lays them out; 0 where they read nothing."""
        size, most = 0, 1
        for i, operand in enumerate(self.form.operands):
            if self._in_terms[i]:
                access, each = self.accesses[operand.var], dtype_bytes(str(operand.buffer.dtype))
                aligned = min(16, access.together * each)
                count = 1 if access.kind == "same" else self.lanes
                size = -(-size // aligned) * aligned + count * each
                most = max(most, aligned)
        return -(-size // most) * most

    def struct(self, numbers: Mapping[str, int]) -> str:
        """Return the struct `Space<index>`."""
        constants = "".join(f"  static constexpr int {name} = {value};\n" for name, value in numbers.items())
        size = self.space.members if self.whole.across else divided(self.space.members, self.lanes)
        count = f"operands.size{self.index}" if not isinstance(size, int) else str(size)
        return (
            f"struct Space{self.index} {{\n{constants}"
            f"  static DEV int size(const Operands& operands) {{ return (int)({count}); }}\n  {self.place()}"
            f"{self._fields('Terms', True)}{self._fields('Rest', False)}{self._places()}"
            f"{self._reading('Terms', 'in', True)}{self._reading('Rest', 'rest', False)}"
            f"{self._results() if self.index == 0 else ''}}};\n"
        )

    def term(self, at: int, made: Sum) -> str:
        """Return the struct `Sum<at>`."""
        before, inside = self.written(steps_for(self.form, [made.value]))
        c_type, dtype = held(made.dtype), made.dtype
        value = self._of_one["l"][1].text(made.value)
        start = Values({}, lambda var: var.name, fast=False).text(made.start)
        both = {"sum": "a + b", "max": "relaxc_max(a, b)", "min": "relaxc_min(a, b)"}[made.kind]
        kept = f"rounded<{TYPES[dtype]}>(from[l])" if dtype in ("float16", "bfloat16") else "from[l]"
        return (
            f"struct Sum{at} {{\n  typedef {c_type} T;\n  typedef Space{self.index} Space;\n"
            f"  static constexpr int AT = {at};\n"
            f"  static DEV T start() {{ return {start}; }}\n  static DEV T both(T a, T b) {{ return {both}; }}\n"
            f"  static DEV void keep(Sums& sums, const T (&from)[SUM_LANES]) {{\n"
            f"    for (int l = 0; l < SUM_LANES; l++) sums.s{at}[l] = {kept};\n  }}\n"
            f"  static DEV void term(T (&made)[Space::LANES], const Space::Terms& in, const Space::Place& at, "
            f"const Sums& sums) {{\n{before}#pragma unroll\n  for (int l = 0; l < {self.lanes}; l++) {{\n{inside}"
            f"    made[l] = {value};\n  }}\n  }}\n}};\n"
        )

    def _results(self) -> str:
        last = [self.form.value]
        before = self.form
        self.form = replace(before, steps=tuple(steps_for(before, last)))
        text = self._result().replace("DEV void result", "static DEV void result")
        self.form = before
        position = self.position(self.form.place)
        return f"{text}static DEV long long position(const Place& at) {{ return {position}; }}\n"

    def _fields(self, name: str, in_terms: bool) -> str:
        fields = ""
        for i, operand in enumerate(self.form.operands):
            if self._in_terms[i] == in_terms:
                access = self.accesses[operand.var]
                count = 1 if access.kind == "same" else self.lanes
                fields += f"    Vector<{TYPES[str(operand.buffer.dtype)]}, {count}, {access.together}> v{i};\n"
        return f"  struct {name} {{\n{fields}  }};\n"

    def _reading(self, struct: str, name: str, in_terms: bool) -> str:
        """`read`: what the terms need, or the rest; addresses may be made of what is read before."""
        lines = [
            self._read_one(i, operand).replace(f"in.v{i}.", f"{name}.v{i}.")
            for i, operand in enumerate(self.form.operands)
            if self._in_terms[i] == in_terms
        ]
        given = "" if in_terms else "const Terms& in, "
        return (
            f"static DEV void read({given}{struct}& {name}, const Place& at, const Operands& operands) {{\n"
            f"{''.join(lines)}}}\n"
        )

    def _places(self) -> str:
        """`to_group` and `to_member`: where a group and one of its vectors of members are."""
        groups, sizes = len(self.whole.groups), list(self.form.sizes)
        across = self.whole.across
        axes = list(range(groups - across))
        outer = self._unflattened(axes, sizes)
        own = f"    at.x[{len(sizes) - 1}] = column;\n" if across else ""
        members = list(range(groups - across, len(sizes) - across))
        sizes_of = {i: sizes[i] for i in members}
        times = ""
        if members and not across:
            sizes_of[members[-1]] = divided(sizes_of[members[-1]], self.lanes)
            times = f"    at.x[{members[-1]}] *= {self.lanes};\n" if self.lanes > 1 else ""
        inner = self._unflattened(members, sizes_of)
        return (
            f"  static DEV void to_group(Place& at, Count rest, int column, const Operands& operands) {{\n"
            f"{self.sizes_at()}{outer}{own}  }}\n"
            f"  static DEV void to_member(Place& at, Count rest) {{\n{inner}{times}  }}\n"
        )

    def _unflattened(self, axes: Sequence[int], sizes: Mapping[int, Size] | Sequence[Size]) -> str:
        """Statements that take a position `rest` apart into the axes, the last of them fastest."""
        lines = "".join(self.split(axis, sizes[axis], 1) for axis, _ in pairwise(reversed(axes)))
        return lines + (f"    at.x[{axes[0]}] = (int)rest;\n" if axes else "")

    def _element(self, var: Var, lane: str) -> str:
        (i,) = (i for i, operand in enumerate(self.form.operands) if operand.var.same_as(var))
        where = "in" if self._in_terms[i] else "rest"
        return f"{where}.v{i}[{lane if self.accesses[var].kind != 'same' else '0'}]"

    def _var(self, var: Var, lane: str, *, inline: bool) -> str:
        for at, each in enumerate(self.whole.sums):
            if each.var.same_as(var):
                return f"sums.s{at}[{lane if self.whole.across else '0'}]"
        return super()._var(var, lane, inline=inline)

    def _var_varies(self, var: Var) -> bool:
        return self._of_groups[var] if var in self._of_groups else super()._var_varies(var)

    def _moved(self, value: Expr) -> str | None:
        """A sum is no element of an operand."""
        if any(self._of_groups.get(var) is not None for var in tir.variables(value)):
            return None
        return super()._moved(value)


def sizes_of(form: Reductions, members: Sequence[Members]) -> dict[str, Size]:
    """Return what the kernel asks of sizes: groups without the axis that lanes are across, vectors of that axis."""
    lanes = members[0].lanes if form.across else 1
    groups = form.groups[:-1] if form.across else form.groups
    columns = divided(form.groups[-1], lanes) if form.across else 1
    return {"outer": tir.product(list(groups)), "columns": columns}


def at_call(form: Reductions, members: Sequence[Members]) -> tuple[Expr, ...]:
    """Return what Operands has behind the pointers where sizes are known at the call."""
    if not form.symbols:
        return ()
    vectors = [each.space.members if form.across else divided(each.space.members, each.lanes) for each in members]
    return (*map(tir.size, (*sizes_of(form, members).values(), *vectors)), *form.symbols)


def source(
    form: Reductions, members: Sequence[Members], spaces: Sequence[Mapping[str, int]], numbers: Mapping[str, int]
) -> str:
    """Return the whole text: `spaces` has the constants of each space, `numbers` those of the kernel."""
    names = [f"p{i}" for i in range(len(members[0]._buffers))]
    parameters = ["void* shared", "void* out", *(f"const void* {name}" for name in names)]
    constants = "".join(f"constexpr int {name} = {value};\n" for name, value in numbers.items())
    sums = "".join(f"  {held(each.dtype)} s{i}[SUM_LANES];\n" for i, each in enumerate(form.sums))
    pointers = "".join(f"  const void* p{i};\n" for i in range(len(names)))
    own = sizes_of(form, members)
    if form.symbols:
        sizes = [*own, *(f"size{i}" for i in range(len(members))), *(f"s{i}" for i in range(len(form.symbols)))]
        pointers += f"  long long {', '.join(sizes)};\n"
        parameters, names = [*parameters, *(f"long long {name}" for name in sizes)], [*names, *sizes]
    counts = "".join(
        f"DEV unsigned int {name}_of(const Operands& operands) {{ return "
        f"{size if isinstance(size, int) else f'(unsigned int)operands.{name}'}; }}\n"
        for name, size in own.items()
    )
    count = f"typedef unsigned {'long long' if form.symbols else 'int'} Count;\n"
    structs = "".join(each.struct(own) for each, own in zip(members, spaces, strict=True))
    terms = "".join(members[each.space].term(i, each) for i, each in enumerate(form.sums))
    calls = "".join(f"  run.template reduce<Sum{i}>();\n" for i in range(len(form.sums)))
    return (
        f"{text_of('relaxc.schedules.cuda.common', 'hopper.cuh')}namespace NAME_ {{\n{constants}"
        f"typedef {TYPES[str(form.out.dtype)]} Out;\n"
        f"{text_of('relaxc.schedules.cuda.elementwise', 'lanes.cuh')}"
        f"struct Operands {{\n{pointers}}};\n{count}{counts}struct Sums {{\n{sums}}};\n{structs}{terms}"
        f"template <class R> DEV void every_sum(R& run) {{\n{calls}}}\n"
        f"{text_of('relaxc.schedules.cuda.reductions', 'reductions.cuh')}}}\n"
        f"__device__ __forceinline__ void NAME({', '.join(parameters)}) {{\n"
        f"  NAME_::reductions((char*)shared, (NAME_::Out*)out, NAME_::Operands{{{', '.join(names)}}});\n}}\n"
    )
