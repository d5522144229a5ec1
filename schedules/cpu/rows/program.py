"""A row-wise function as one loop over rows, whose stages run in vectors with several accumulators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tvm import s_tir, tirx

from relaxc.schedules.cpu.rows.stages import RowFunction, Stage
from relaxc.schedules.cpu.rows.vectors import Vector, filled, folded, in_lanes, is_whole_sum, loop, summed, vectors
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.ir.extremes import OF_NUMBERS, any_nan, is_shift
from relaxc.schedules.ir.statements import prefetch
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, Size, Stmt, TensorLoad, Var

__all__ = ["row_program"]

_MASKED = (4, 8, 16, 32)
"""Lanes of vectors that are tested for NaN as a whole."""

_BLOCK = 512
"""Steps that one accumulator adds up before its sum joins a total, as numpy and torch add: a norm of a million floats
that are added one after the other is off by 4e-4, and so by 2e-6."""

Place = Callable[[list[Expr]], "tuple[Buffer, list[Expr]]"]
"""From the indices of an intermediate buffer to where it is kept for a row: a buffer, and indices into it."""


def row_program(
    func: PrimFunc, function: RowFunction, *, lanes: int, unroll: int, parallel: bool, ahead: bool = False
) -> PrimFunc:
    """Return `func`, which computes `function`, with each row's stages after each other while the row is in the cache.

        for r in rows:                                       # parallel
            acc[0..u][lanes] = identity
            for j: for u: acc[u][:] = op(acc[u][:], term(x[r, (j * unroll + u) * lanes :]))
            s = op over acc                                  # halves onto halves
            for j: y[r, j * lanes :] = value(x, s)

    Stages that wait for no result of each other share a loop; one that evaluates functions, which take longer than an
    accumulator's latency, has one vector a step. The last vector of a row whose length is no multiple of
    `lanes` overlaps the one before it, so that there is no scalar tail: a reduction takes the identity for what it
    has seen. An intermediate vector that only the result is made of, element by element, lives in the result.
    """
    row = tir.fresh("row")
    groups = _groups(function)
    builder = _Builder(function, groups, tir.unflatten(row, function.extents) if function.extents else [])
    if ahead and function.extents:
        builder.fetched, builder.fetching = _inputs(function, groups[0]), _longest(groups)
        builder.next_row = {row: row + 1}
    body = tirx.stmt_seq(*(builder.group(group, lanes, unroll) for group in groups))
    if function.extents:
        kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
        body = tirx.For(row, tir.index_const(0), tir.size(tir.product(list(function.extents))), kind, body)
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=builder.buffers)
    return func.with_body(s_tir.SBlockRealize([], True, root))


def _groups(function: RowFunction) -> list[list[Stage]]:
    """Stages that one loop can compute together, in order."""
    groups: list[list[Stage]] = []
    for stage in function.stages:
        if groups and _joins(stage, groups[-1], function):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def _longest(groups: list[list[Stage]]) -> list[Stage]:
    """Of the loops after the first that run over the same positions, one that evaluates functions, or the last."""
    later = [group for group in groups[1:] if group[0].sizes == groups[0][0].sizes]
    long = [group for group in later if any(stage.evaluates for stage in group)]
    return (long or later[-1:] or [[]])[0]


def _inputs(function: RowFunction, group: list[Stage]) -> list[tuple[Stage, TensorLoad]]:
    """The loads of `group` from parameters that go along a row and are not the same for every row."""
    found = []
    for stage in group:
        for load in tir.loads(stage.value):
            own = function.writer(load.source) is None and not tir.loads(list(load.indices))
            if own and tir.uses(list(load.indices), stage.flat) and tir.uses(list(load.indices), stage.rows):
                found.append((stage, load))
    return found


def _joins(stage: Stage, group: list[Stage], function: RowFunction) -> bool:
    """Whether `stage` runs over the same positions as `group`, and reads of it only what was just computed there."""
    first = group[0]
    if stage.is_scalar or first.is_scalar or stage.sizes != first.sizes:
        return False
    for load in tir.loads(stage.value):
        writer = function.writer(load.source)
        if writer is None or not any(writer is other for other in group):
            continue
        if writer.operator is not None or not _same_place(stage, load.indices, writer):
            return False
    return True


def _same_place(stage: Stage, indices: Sequence[Expr], writer: Stage) -> bool:
    """Whether `stage` reads at `indices` what `writer`, at the same position of its axes, writes."""
    to_writer = dict(zip(_axes(stage), _axes(writer), strict=True))
    zeros = {var: tir.zero(var) for var in (*stage.ones, *writer.ones)}
    pairs = zip(indices, writer.block.body.indices, strict=True)
    return all(
        tir.same(tir.simplify(tir.substitute(read, to_writer | zeros)), tir.simplify(tir.substitute(written, zeros)))
        for read, written in pairs
    )


def _axes(stage: Stage) -> tuple[Var, ...]:
    return (*stage.rows, *stage.outer, *stage.flat)


class _Builder:
    """Statements of one row; `row` gives the indices of its axes."""

    def __init__(self, function: RowFunction, groups: list[list[Stage]], row: list[Expr]) -> None:
        self.function, self.row = function, row
        self.buffers: list[Buffer] = []
        self.fetched: list[tuple[Stage, TensorLoad]] = []
        self.fetching: list[Stage] = []
        self.next_row: dict[Var, Expr] = {}
        self.places: dict[Buffer, Place] = {}
        self.in_result = _held_in_result(function, groups)
        for stage in function.stages[:-1]:
            self.places[stage.buffer] = self._place(stage)

    def _place(self, stage: Stage) -> Place:
        """Where an intermediate buffer is kept for this row."""
        rows = len(self.function.extents)
        if stage is self.in_result:
            return self._in_result
        shape = list(stage.buffer.shape)[rows:] if not (stage.is_scalar or stage.operator) else [1]
        kept = self._allocate(shape, str(stage.buffer.dtype), stage.buffer.name)
        if stage.is_scalar or stage.operator:
            return lambda _: (kept, [tir.index_const(0)])
        return lambda indices: (kept, indices[rows:])

    def _in_result(self, indices: list[Expr]) -> tuple[Buffer, list[Expr]]:
        last = self.function.last
        rows = len(last.rows)
        axes = [iv.var for iv in last.block.iter_vars]
        values = dict(zip(axes, [*self.row, *indices[rows:]], strict=True))
        return last.buffer, [tir.substitute(index, values) for index in last.block.body.indices]

    def _allocate(self, shape: list[Size], dtype: str, name: str) -> Buffer:
        self.buffers.append(tirx.decl_buffer(shape, dtype, name, scope="local"))
        return self.buffers[-1]

    def group(self, stages: list[Stage], lanes: int, unroll: int) -> Stmt:
        """Return the loop that computes `stages`, what comes before it and behind it."""
        if stages[0].is_scalar:
            return self._store(stages[0], self._values(stages[0], [], []), None)
        outer_sizes, flat_sizes = stages[0].sizes
        steps = 1 if any(stage.evaluates for stage in stages) else unroll
        parts_of_row = vectors(prod(flat_sizes), lanes, steps)
        slots = 1 + max(vector.slot for _, group in parts_of_row for vector in group)
        width = parts_of_row[0][1][0].lanes
        sums = {id(s): self._accumulators(s, slots * width) for s in stages if s.operator is not None}
        outer = [tir.fresh("outer") for _ in outer_sizes]
        body: list[Stmt] = []

        def once(stage: Stage) -> bool:
            """Whether the first loop has one step, and so the first number of each accumulator."""
            return parts_of_row[0][0] == 1 and not outer and _keeps_nan(stage)

        totals = self._totals(stages, sums, slots * width, parts_of_row[0][0])

        def steps_of(count: int, group: list[Vector], first: Expr) -> Stmt:
            """The loop over `count` steps from `first`."""
            step = tir.fresh("step")
            parts = [
                self._vector(s, v, count, first + step, outer, sums.get(id(s)), begins=once(s) and not body)
                for v in group
                for s in stages
            ]
            if stages is self.fetching:
                parts += [self._fetch(*each, v.start(first + step), outer) for v in group for each in self.fetched]
            return loop(step, count, tirx.stmt_seq(*parts))

        for count, group in parts_of_row:
            blocks, rest = divmod(count, _BLOCK) if totals else (0, count)
            if blocks:
                block = tir.fresh("block")
                moved = [self._moved(*each, slots, width) for each in totals]
                inner = steps_of(_BLOCK, group, block * _BLOCK)
                body.append(loop(block, blocks, tirx.stmt_seq(inner, *moved)))
            if rest:
                body.append(steps_of(rest, group, tir.index_const(blocks * _BLOCK)))
        nest = tirx.stmt_seq(*body)
        for var, extent in reversed(list(zip(outer, outer_sizes, strict=True))):
            nest = loop(var, extent, nest)
        reduced = [stage for stage in stages if stage.operator is not None]
        before = [self._identity(s, sums[id(s)], slots, width) for s in reduced if not once(s)]
        before += [self._identity(s, total, slots, width) for s, _, total in totals]
        nest = tirx.stmt_seq(nest, *(_added(sums, total, slots, width) for _, sums, total in totals))
        behind = [self._combined(s, sums[id(s)], slots, width) for s in reduced]
        return tirx.stmt_seq(*before, nest, *behind)

    def _accumulators(self, stage: Stage, count: int) -> Buffer:
        return self._allocate([count], str(stage.buffer.dtype), f"{stage.buffer.name}_lanes")

    def _totals(
        self, stages: list[Stage], sums: Mapping[int, Buffer], count: int, steps: int
    ) -> list[tuple[Stage, Buffer, Buffer]]:
        """The stages that sum floats over more than a block, with their accumulators, and the totals of these."""
        found = [s for s in stages if s.operator is not None and s.operator[0] is tirx.Add] if steps > _BLOCK else []
        floats = [s for s in found if is_float(str(s.buffer.dtype))]
        return [(s, sums[id(s)], self._accumulators(s, count)) for s in floats]

    def _moved(self, stage: Stage, sums: Buffer, total: Buffer, slots: int, width: int) -> Stmt:
        """Accumulators onto their totals; they begin anew."""
        return tirx.stmt_seq(_added(total, sums, slots, width), self._identity(stage, sums, slots, width))

    def _identity(self, stage: Stage, sums: Buffer, slots: int, width: int) -> Stmt:
        start = stage.block.init.value
        return tirx.stmt_seq(*(filled(sums, start, slot * width, width) for slot in range(slots)))

    def _vector(
        self,
        stage: Stage,
        vector: Vector,
        count: int,
        step: Expr,
        outer: list[Var],
        sums: Buffer | None,
        *,
        begins: bool,
    ) -> Stmt:
        """One vector of one stage; where it `begins`, its accumulator has nothing yet."""

        def at(lane: Expr) -> Stmt:
            position = vector.start(step) if count > 1 else vector.start(tir.index_const(0))
            place = tir.simplify(position) + lane
            values = self._values(stage, outer, tir.unflatten(place, [tir.size(s) for s in stage.sizes[1]]))
            fresh = None if vector.fresh == vector.lanes else lane >= tir.index_const(vector.lanes - vector.fresh)
            if sums is None:
                return self._store(stage, values, fresh)
            op = stage.operator[0]  # type: ignore[index]  # a stage with sums reduces
            term = self._read(stage.value, values)
            if fresh is not None:
                term = tirx.Select(fresh, term, stage.block.init.value)
            spot = lane + vector.slot * vector.lanes
            return tirx.BufferStore(sums, term if begins else op(sums[spot], term), [spot])

        return in_lanes(vector.lanes, at)

    def _fetch(self, stage: Stage, load: TensorLoad, position: Expr, outer: list[Var]) -> Stmt:
        """The prefetch of what `load` reads at `position` of the next row; past the last row it does nothing."""
        flat = tir.unflatten(tir.simplify(position), [tir.size(s) for s in stage.sizes[1]])
        element = tir.substitute(tir.substitute(load, self._values(stage, outer, flat)), self.next_row)
        return prefetch(element)

    def _combined(self, stage: Stage, sums: Buffer, slots: int, width: int) -> Stmt:
        """Accumulators onto the first, then its halves onto each other, and the last into the stage's result."""
        op = stage.operator[0]  # type: ignore[index]  # called for reductions
        test: list[Stmt] = []
        if _keeps_nan(stage) and width in _MASKED:
            found = any_nan(sums, width, slots)
            has_nan = self._allocate([1], str(found.ty.dtype), f"{stage.buffer.name}_nan")
            test, op = [tirx.BufferStore(has_nan, found, [tir.index_const(0)])], OF_NUMBERS[op]
        steps = [folded(sums, op, width, slot * width) for slot in range(1, slots)]
        total = sums[0]
        if op is tirx.Add and is_whole_sum(sums, width):
            total, width = summed(sums, width), 1
        while width > 1:
            rest = width - width // 2
            steps.append(folded(sums, op, width // 2, rest))
            width = rest
        values = self._values(stage, [], [])
        buffer, indices = self._target(stage, values)
        if test:
            total = tirx.Select(has_nan[0], tirx.const(float("nan"), str(sums.dtype)), total)
        return tirx.stmt_seq(*test, *steps, tirx.BufferStore(buffer, total, indices))

    def _values(self, stage: Stage, outer: list[Var], flat: list[Expr]) -> dict[Var, Expr]:
        values = dict(zip(stage.rows, self.row, strict=True)) | {var: tir.zero(var) for var in stage.ones}
        values |= dict(zip(stage.outer, outer, strict=bool(outer)))
        return values | dict(zip(stage.flat, flat, strict=bool(flat)))

    def _store(self, stage: Stage, values: dict[Var, Expr], fresh: Expr | None) -> Stmt:
        buffer, indices = self._target(stage, values)
        value = self._read(stage.value, values)
        if fresh is not None and self.in_result is not None and stage is self.function.last:
            value = tirx.Select(fresh, value, buffer[tuple(indices)])
        return tirx.BufferStore(buffer, value, indices)

    def _target(self, stage: Stage, values: dict[Var, Expr]) -> tuple[Buffer, list[Expr]]:
        indices = [tir.substitute(index, values) for index in stage.block.body.indices]
        return (stage.buffer, indices) if stage is self.function.last else self.places[stage.buffer](indices)

    def _read(self, value: Expr, values: dict[Var, Expr]) -> Expr:
        """`value` with its variables put in, and intermediate results read from where they are kept."""
        value = tir.substitute(value, values)
        for source, place in self.places.items():

            def moved(load: TensorLoad, place: Place = place) -> Expr:
                buffer, indices = place(list(load.indices))
                return buffer[tuple(indices)]

            value = tir.replace_loads(value, source, moved)
        return value


def _keeps_nan(stage: Stage) -> bool:
    """Whether it is the largest or the smallest of floats, and NaN where one is."""
    is_extreme = stage.operator is not None and stage.operator[0] in OF_NUMBERS
    return is_extreme and is_float(str(stage.buffer.dtype)) and not is_shift(stage.buffer)


def _held_in_result(function: RowFunction, groups: list[list[Stage]]) -> Stage | None:
    """The last intermediate vector, if the result is made of it element by element, in a later loop, in its dtype."""
    last = function.last
    arrays = [s for s in function.stages[:-1] if not s.is_scalar and s.operator is None]
    if not arrays or last.operator is not None or arrays[-1].buffer.dtype != last.buffer.dtype:
        return None
    held = arrays[-1]
    reads = [load for load in tir.loads(last.value) if load.source.same_as(held.buffer)]
    plain = [iv.var for iv in last.block.iter_vars]
    whole = len(plain) == len(held.buffer.shape) and all(
        tir.same_size(iv.dom.extent, size) for iv, size in zip(last.block.iter_vars, held.buffer.shape, strict=True)
    )
    at_place = all(all(map(tir.same_var, load.indices, plain)) for load in reads)
    apart = not any(stage is held for stage in groups[-1])
    return held if reads and whole and at_place and apart else None


def _added(to: Buffer, what: Buffer, slots: int, width: int) -> Stmt:
    """`to[i] += what[i]`, each accumulator as a vector."""

    def slot(first: int) -> Stmt:
        return in_lanes(width, lambda lane: tirx.BufferStore(to, to[lane + first] + what[lane + first], [lane + first]))

    return tirx.stmt_seq(*(slot(number * width) for number in range(slots)))
