"""Reading a PrimFunc that reduces back from its result: groups, members, and the sums in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.cuda.common.expression import Unsupported
from relaxc.schedules.cuda.common.sizes import buffers_of, guess, known_or, symbols_of
from relaxc.schedules.cuda.elementwise.axes import continues, cuts, with_neighbours_joined
from relaxc.schedules.cuda.elementwise.form import Form
from relaxc.schedules.cuda.elementwise.reading import Reader, is_whole, unfit
from relaxc.schedules.cuda.reductions.form import Reductions, Space, Sum
from relaxc.schedules.ir import analysis, positions, tir
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, SBlock, Size, Var
from relaxc.schedules.template import Declined

__all__ = ["match"]

_KINDS = {tirx.Add: "sum", tirx.Max: "max", tirx.Min: "min"}
_DTYPES = ("float32", "float16", "bfloat16", "int32", "int64")
_MOST_SUMS = 8
_MOST_LOADS = 400


def match(func: PrimFunc) -> Reductions | Declined:
    """Return what `func` reduces and writes, or why it is nothing that the template takes."""
    if not analysis.has_reduction(func):
        return Declined("it reduces nothing")
    if reason := unfit(func):
        return Declined(reason)
    try:
        return _Whole(func).read()
    except Unsupported as error:
        return Declined(str(error))


class _Whole:
    """Finds the groups of the result, then reads the terms of each sum and the result over the groups and members."""

    def __init__(self, func: PrimFunc) -> None:
        nests = analysis.nests(func)
        if any(nest is None or not _is_known(nest) for nest in nests):
            raise Unsupported("its blocks are not one store each to every element")
        blocks = [nest.block for nest in nests if nest is not None]
        self.stores: dict[Buffer, SBlock] = {block.body.buffer: block for block in blocks}
        outputs = [buffer for buffer in buffers_of(func) if buffer in self.stores]
        if len(outputs) != 1 or len(self.stores) != len(blocks):
            raise Unsupported(f"it writes {len(outputs)} results, not one")
        (self.out,) = outputs
        self.params = buffers_of(func)
        self.symbols = symbols_of(func)
        self.sums = [block for block in blocks if block.init is not None]
        if len(self.sums) > _MOST_SUMS:
            raise Unsupported(f"it has more than {_MOST_SUMS} sums")
        self.at: dict[Buffer, list[Expr]] = {}
        self.vars = {
            block.body.buffer: tirx.Var(f"sum{i}", str(block.body.buffer.dtype)) for i, block in enumerate(self.sums)
        }

    def read(self) -> Reductions:
        """Return the whole function. Raise Unsupported."""
        self._find_axes()
        spaces = _Spaces(self)
        result = spaces.result()
        # from the last to the first: what reads a sum says which
        read = [spaces.sum_of(block) for block in reversed(self.sums)][::-1]
        return _joined(self.out, self.groups, spaces.forms(result), read)

    def _find_axes(self) -> None:
        """The axes of the result, cut so that each is one of groups or of members; where the sums of an element are."""
        shape = [known_or(dim) for dim in self.out.shape]
        axes = [tir.fresh(f"a{i}") for i in range(len(shape))]
        found: list[tuple[Buffer, list[Expr]]] = []
        self._sums_behind(self._at(self.out, axes), dict(zip(axes, shape, strict=True)), found)
        places = [index for _, indices in found for index in indices]
        bounds = dict(zip(axes, shape, strict=True))
        self.place: list[Expr] = []
        self.sizes: dict[Var, Size] = {}
        values: dict[Var, Expr] = {}
        for axis, size in bounds.items():
            sizes = cuts(places, axis, size, bounds)
            parts = [
                tir.index_const(0) if tir.as_int(part) == 1 else tir.fresh(f"{axis.name}_{i}")
                for i, part in enumerate(sizes)
            ]
            self.sizes |= {part: size for part, size in zip(parts, sizes, strict=True) if tir.as_int(size) != 1}
            values[axis] = tir.flatten(parts, sizes)
            self.place.append(values[axis])
        for buffer, indices in found:
            self._note(buffer, [tir.substitute(index, values) for index in indices], self.sizes)
        used = tir.uses([index for indices in self.at.values() for index in indices], list(self.sizes))
        self.groups = {axis: self.sizes[axis] for axis in used}
        self.members = {axis: size for axis, size in self.sizes.items() if axis not in self.groups}

    def _at(self, buffer: Buffer, indices: Sequence[Expr]) -> Expr:
        """What is stored at these indices: of a sum, itself."""
        block = self.stores[buffer]
        if block.init is not None:
            return buffer[tuple(indices)]
        values: dict[Var, Expr] = {iv.var: tir.zero(iv.var) for iv in block.iter_vars}
        values |= {i: wanted for i, wanted in zip(block.body.indices, indices, strict=True) if isinstance(i, tirx.Var)}
        return tir.substitute(block.body.value, values)

    def _sums_behind(self, expr: Expr, bounds: Mapping[Var, Size], found: list[tuple[Buffer, list[Expr]]]) -> None:
        seen: list[TensorLoad] = []
        pending = tir.loads(expr)
        while pending:
            load = pending.pop()
            if load.source not in self.stores or any(tir.same(load, other) for other in seen):
                continue
            seen.append(load)
            if len(seen) > _MOST_LOADS:
                raise Unsupported("it reads too many values")
            if self.stores[load.source].init is None:
                pending += tir.loads(self._at(load.source, load.indices))
            else:
                found.append((load.source, [positions.simplify(index, bounds) for index in load.indices]))

    def _note(self, buffer: Buffer, indices: Sequence[Expr], bounds: Mapping[Var, Size]) -> None:
        """A sum is read at these indices: everywhere at the same, or it is not of the element's own group."""
        made = [positions.simplify(index, bounds) for index in indices]
        known = self.at.setdefault(buffer, made)
        if any(tir.as_int(tir.simplify(a - b, bounds)) != 0 for a, b in zip(known, made, strict=True)):
            raise Unsupported("it reads sums of other groups than its own")


class _OfGroup(Reader):
    """Reads values over groups and the members of one space."""

    whole: _Whole

    def reduced(self, block: SBlock, indices: Sequence[Expr]) -> Var:
        """See `Reader`: the group's own sum."""
        self.whole._note(block.body.buffer, indices, self.bounds)
        return self.whole.vars[block.body.buffer]


class _Spaces:
    """The members that the sums and the result are over: those of equal sizes are the same."""

    def __init__(self, whole: _Whole) -> None:
        self.whole = whole
        self.readers: list[_OfGroup] = []
        self.axes: list[dict[Var, Size]] = []
        self.terms: list[list[Expr]] = []
        self._add(whole.members)

    def _add(self, axes: Mapping[Var, Size]) -> int:
        reader = _OfGroup(self.whole.params, self.whole.stores, self.whole.out, {**self.whole.groups, **axes})
        reader.whole = self.whole
        self.readers.append(reader)
        self.axes.append(dict(axes))
        return len(self.readers) - 1

    def sum_of(self, block: SBlock) -> Sum:
        """Return a reduction with its term over groups and members. Raise Unsupported."""
        store, buffer = block.body, block.body.buffer
        kind, dtype = _KINDS.get(type(store.value), ""), str(buffer.dtype)
        if not kind or dtype not in _DTYPES or not tir.loads_what_it_stores(store.value.a, store):
            raise Unsupported("it is no sum, maximum or minimum of numbers")
        start = block.init.value
        if tir.loads(start) or (kind == "sum" and float(getattr(start, "value", 1)) != 0):
            raise Unsupported("a sum does not start at zero")
        if any(
            var not in self.whole.groups for var in tir.variables(self.whole.at.get(buffer, [tirx.Var("", "int64")]))
        ):
            raise Unsupported("it reads sums of other groups than its own")
        reduced = [iv for iv in block.iter_vars if analysis.reduces(iv)]
        space = self._space([known_or(iv.dom.extent) for iv in reduced])
        values = dict(zip([iv.var for iv in reduced], self._places(space, reduced), strict=True))
        values |= {iv.var: tir.zero(iv.var) for iv in block.iter_vars if not analysis.reduces(iv)}
        values |= {
            var: at for var, at in zip(store.indices, self.whole.at[buffer], strict=True) if isinstance(var, tirx.Var)
        }
        value = self.readers[space].value_of(tir.substitute(store.value.b, values))
        return Sum(self.whole.vars[buffer], kind, dtype, start, space, value)

    def _space(self, extents: Sequence[Size]) -> int:
        sizes = [extent for extent in extents if tir.as_int(extent) != 1]
        for i, axes in enumerate(self.axes):
            if _are_same(list(axes.values()), sizes):
                return i
            if axes and tir.same_size(tir.product(sizes), tir.product(list(axes.values()))):
                return i
        return self._add({tir.fresh(f"m{i}"): size for i, size in enumerate(sizes)})

    def _places(self, space: int, reduced: Sequence[object]) -> list[Expr]:
        """What the reduced variables are in the members' axes."""
        extents, axes = [known_or(iv.dom.extent) for iv in reduced], self.axes[space]  # type: ignore[attr-defined]
        if _are_same([extent for extent in extents if tir.as_int(extent) != 1], list(axes.values())):
            given = iter(axes)
            return [next(given) if tir.as_int(extent) != 1 else tir.index_const(0) for extent in extents]
        position = tir.flatten(list(axes), list(axes.values()))
        return [positions.simplify(each, axes) for each in tir.unflatten(position, extents)]

    def result(self) -> Expr:
        """Return what the result is, over the first space. Raise Unsupported."""
        whole = self.whole
        block = whole.stores[whole.out]
        if block.init is not None:
            return self.readers[0].reduced(block, whole.place)
        return self.readers[0].value_at(block, whole.place)

    def forms(self, result: Expr) -> list[Form]:
        """Return the form of each space, with the result in the first."""
        whole, made = self.whole, []
        place = positions.simplify(tir.flatten(whole.place, list(whole.out.shape)), whole.sizes)
        for i, (reader, axes) in enumerate(zip(self.readers, self.axes, strict=True)):
            every = {**whole.groups, **axes}
            made.append(
                Form(
                    whole.out, tuple(every), tuple(every.values()), place if i == 0 else tir.index_const(0),
                    tuple(reader.operands), tuple(reader.steps), result if i == 0 else tir.index_const(0),
                    whole.symbols,
                )
            )  # fmt: skip
        return made


def _are_same(sizes: Sequence[Size], others: Sequence[Size]) -> bool:
    return len(sizes) == len(others) and all(map(tir.same_size, sizes, others))


def _is_known(nest: analysis.Nest) -> bool:
    return (analysis.is_injective(nest.block) or analysis.is_reduction(nest.block)) and is_whole(nest)


def _joined(out: Buffer, groups: Mapping[Var, Size], forms: list[Form], sums: Sequence[Sum]) -> Reductions:
    """With neighbouring axes as one where every address goes on: those of groups alike in all spaces."""
    count = len(groups)
    terms = [[each.value for each in sums if each.space == i] for i in range(len(forms))]
    for i, form in enumerate(forms):
        for at in reversed(range(count, len(form.axes) - 1)):
            if continues(form, at, terms[i]):
                form = with_neighbours_joined(form, at)
        forms[i] = form
    for at in reversed(range(count - 1)):
        if all(continues(form, at, each) for form, each in zip(forms, terms, strict=True)):
            forms = [with_neighbours_joined(form, at) for form in forms]
            count -= 1
    last = _across(forms, count)
    sizes = list(forms[0].sizes[:count])
    members = [tir.product(list(form.sizes[count:])) for form in forms]
    if last is not None:
        forms = [_with_last(form, last) for form in forms]
        sizes.append(sizes.pop(last))
    spaces = [Space(form, count_of) for form, count_of in zip(forms, members, strict=True)]
    return Reductions(out, tuple(sizes), last is not None, tuple(spaces), tuple(sums))


def _with_last(form: Form, axis: int) -> Form:
    order = [i for i in range(len(form.axes)) if i != axis] + [axis]
    axes, sizes = (tuple(each[i] for i in order) for each in (form.axes, form.sizes))
    return replace(form, axes=axes, sizes=sizes)


def _across(forms: Sequence[Form], count: int) -> int | None:
    """The axis of groups along which neighbours in memory lie: of the result, else of the largest operand."""
    form = forms[0]
    if len(form.axes) > count:
        steps = [tir.stride(form.place, axis, form.bounds) for axis in form.axes]
        return steps.index(1) if 1 in steps and steps.index(1) < count else None
    best, size = None, 0
    for each in forms:
        for operand in each.operands:
            steps = [tir.stride(operand.at, axis, each.bounds) for axis in each.axes]
            # the addresses that differ, not the buffer's size
            reach = guess(tir.product([n for n, step in zip(each.sizes, steps, strict=True) if step != 0]))
            if 1 in steps and reach > size:
                best, size = (steps.index(1) if steps.index(1) < count else None), reach
    return best
