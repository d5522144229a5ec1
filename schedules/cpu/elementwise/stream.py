"""Elementwise blocks as loops over memory: vectors along contiguous axes, transposed squares across strided ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import s_tir, tirx

from relaxc.schedules.cpu.common.nest import TASKS_PER_CORE, lanes_of, work_of_nest
from relaxc.schedules.cpu.elementwise.cases import by_case, case_depth
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.dtypes import dtype_bits
from relaxc.schedules.ir.statements import call, with_code
from relaxc.schedules.ir.strides import Strided, strided
from relaxc.schedules.ir.transpose_code import transpose_code, transpose_name
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, Size, Stmt
from relaxc.schedules.ir.work import worth_parallel

__all__ = ["stream_program"]

_Body = Callable[[list[Expr], Expr], Stmt]
_Loops = Callable[[_Body], Stmt]
_Element = Callable[[Expr, Expr], Stmt]


def stream_program(func: PrimFunc, cpu: Cpu) -> PrimFunc | None:
    """Return `func`, whose statements are elementwise nests, with each as a loop over memory; None where one cannot be.

    Where every access is contiguous along the last axis, or stays where it is:

        for task in parallel: for outer axes: for i: out[i * lanes :] = f(a[i * lanes :], b, …)

    Where loads walk through memory along another axis a than the result does, by squares transposed in registers:

        for outer axes, blocks of a in parallel: for blocks of the last axis l:
            t = transposed(x[l :, a :]);  for each row of t: out[a, l :] = f(t, …)

    What is left of an axis is done by a vector or a square that overlaps the one before. Conditions that hold for a
    whole row, as those of a concatenation of blocks of channels, choose among loops (see `by_case`).
    """
    statements: list[Stmt] = []
    program = _Program(cpu)
    for nest in analysis.nests(func):
        found = None if nest is None else strided(nest.block, list(func.params))
        statement = None if found is None else program.statement(found)
        if statement is None:
            return None
        statements.append(statement)
    body = tirx.stmt_seq(*statements)
    if program.code:
        body = with_code("".join(program.code.values()), body)
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=program.buffers)
    return func.with_body(s_tir.SBlockRealize([], True, root))


class _Program:
    """The statements of a PrimFunc, the buffers that they need, and the code that they call, by name."""

    def __init__(self, cpu: Cpu) -> None:
        self.cpu = cpu
        self.buffers: list[Buffer] = []
        self.code: dict[str, str] = {}

    def statement(self, found: Strided) -> Stmt | None:
        """Return the loops for one block; None where its accesses are neither contiguous nor transposed."""
        if not found.axes or not isinstance(found.axes[-1].extent, int) or found.store.strides[-1] != 1:
            return None
        lanes = lanes_of(found.block, self.cpu)
        if all(load.strides[-1] in (0, 1) for load in found.loads):
            return self._contiguous(found, lanes)
        across = None if _is_conditional(found) else _across(found, lanes)
        return None if across is None else self._transposed(found, across, lanes)

    def _tasks(self, found: Strided) -> int:
        """Parts that the work is split into at least; 1 where it is not worth waking the other threads."""
        parallel = self.cpu.cores > 1 and worth_parallel(work_of_nest(found.block))
        return TASKS_PER_CORE * self.cpu.cores if parallel else 1

    def _contiguous(self, found: Strided, lanes: int) -> Stmt:
        tasks, extents = self._tasks(found), [axis.extent for axis in found.axes[:-1]]
        length = found.axes[-1].extent
        leading = max(_leading(extents, tasks), case_depth(found))
        rows = tir.product(extents)
        chunk = length
        if isinstance(rows, int) and rows < tasks:
            chunk = min(length, _chunk(length, lanes, -(-tasks // rows)))
        parts = -(-length // chunk)

        def body(case: Strided, outer: list[Expr], part: Expr) -> Stmt:
            start = _start(part, chunk, length)
            return _vectors(chunk, lanes, lambda at, lane: _stored(case, [*outer, start + at + lane]))

        def task(first: list[Expr], loops: _Loops) -> Stmt:
            outer = first[: len(extents)]
            return by_case(found, outer, lambda case: loops(partial(body, case)))

        return _nest([*extents, parts], leading if parts == 1 else len(extents) + 1, tasks > 1, task)

    def _transposed(self, found: Strided, across: int, lanes: int) -> Stmt:
        tasks, axes = self._tasks(found), found.axes
        length, height = axes[-1].extent, axes[across].extent
        extents = [axis.extent for axis in axes[:-1]]
        extents[across] = -(-height // lanes)
        blocks = -(-length // lanes)
        rows = tir.product(extents)
        leading = len(extents) + (isinstance(rows, int) and rows < tasks)

        def body(outer: list[Expr], part: Expr) -> Stmt:
            top = _start(outer[across], lanes, height)
            corner = [*outer[:across], top, *outer[across + 1 :], _start(part, lanes, length)]
            return self._square(found, across, lanes, corner)

        return _nest([*extents, blocks], leading, tasks > 1, lambda _first, loops: loops(body))

    def _square(self, found: Strided, across: int, lanes: int, corner: list[Expr]) -> Stmt:
        """One square of the result, whose first element is at `corner`."""
        turned = [i for i, load in enumerate(found.loads) if load.strides[-1] not in (0, 1)]
        if tir.same(found.body.value, found.loads[turned[0]].node):
            return self._turn(found, turned[0], corner, lanes, found.store.buffer, found.store.strides[across])
        tiles = {i: self._tile(found.loads[i].buffer, lanes) for i in turned}
        calls = [self._turn(found, i, corner, lanes, tile, lanes) for i, tile in tiles.items()]
        row = tir.fresh("row")

        def element(at: Expr, lane: Expr) -> Stmt:
            place = [*corner[:-1], corner[-1] + at + lane]
            place[across] = place[across] + row
            return _stored(found, place, {i: tile[row * lanes + lane] for i, tile in tiles.items()})

        rows = tirx.For(row, tir.index_const(0), tir.size(lanes), tirx.ForKind.SERIAL, _vectors(lanes, lanes, element))
        return tirx.stmt_seq(*calls, rows)

    def _tile(self, source: Buffer, lanes: int) -> Buffer:
        self.buffers.append(tirx.decl_buffer([lanes * lanes], str(source.dtype), "tile", scope="local"))
        return self.buffers[-1]

    def _turn(
        self, found: Strided, index: int, corner: list[Expr], lanes: int, target: Buffer, step: int | None
    ) -> Stmt:
        """The call that transposes the square of one load at `corner` into `target`, whose rows are `step` apart."""
        load = found.loads[index]
        source = load.element(found.axes, corner, found.ones)
        into = target[0]
        if target.same_as(found.store.buffer):
            into = found.store.element(found.axes, corner, found.ones)
        sizes = (lanes, dtype_bits(str(load.buffer.dtype)), load.strides[-1] or 0, step or 0)
        name = transpose_name(*sizes)
        self.code[name] = transpose_code(*sizes)
        return call(name, tirx.address_of(source), tirx.address_of(into))


def _stored(found: Strided, positions: list[Expr], replaced: dict[int, Expr] | None = None) -> Stmt:
    offset = found.store.offset(found.axes, positions, found.ones)
    return tirx.BufferStore(found.store.buffer, found.value(positions, replaced), found.store.at(offset))


def _is_conditional(found: Strided) -> bool:
    """Whether a load that is not along the last axis is in a branch: its square may not exist where it is not taken."""
    branches = [call for call in tir.conditions(found.body.value) if tir.is_if_then_else(call)]
    inside = [load for call in branches for branch in call.args[1:] for load in tir.loads(branch)]
    turned = [load.node for load in found.loads if load.strides[-1] not in (0, 1)]
    return any(tir.same(a, b) for a in inside for b in turned)


def _across(found: Strided, lanes: int) -> int | None:
    """The axis that every load which does not go along the last one goes along; None where there is no such one."""
    turned = [load for load in found.loads if load.strides[-1] not in (0, 1)]
    if any(load.strides[-1] is None for load in turned) or found.axes[-1].extent < lanes:
        return None
    for index, axis in enumerate(found.axes[:-1]):
        extent = axis.extent
        if all(load.strides[index] == 1 for load in turned) and isinstance(extent, int) and extent >= lanes:
            return index if found.store.strides[index] else None
    return None


def _leading(extents: Sequence[Size], tasks: int) -> int:
    """How many of the outer axes give `tasks` tasks together, or all of them."""
    for count in range(1, len(extents)):
        total = tir.product(list(extents[:count]))
        if not isinstance(total, int) or total >= tasks:
            return count
    return len(extents)


def _chunk(length: int, lanes: int, parts: int) -> int:
    """The length of each of `parts`: whole vectors, and a divisor of `length` where one is near."""
    even = -(-length // parts // lanes) * lanes
    for candidate in range(even, 2 * even + 1, lanes):
        if length % candidate == 0:
            return candidate
    return even


def _start(part: Expr, size: int, length: int) -> Expr:
    """Where a part of `size` begins: the last one ends with the axis."""
    return part * size if length % size == 0 else tirx.min(part * size, tir.index_const(length - size))


def _vectors(length: int, lanes: int, body: _Element) -> Stmt:
    """`body(at, lane)` for `length` elements in vectors, of which the last overlaps the one before it."""
    zero = tir.index_const(0)
    if length <= lanes:
        return _vector(length, zero, body)
    step = tir.fresh("i")
    whole = _vector(lanes, step * lanes, body)
    loop = tirx.For(step, zero, tir.size(length // lanes), tirx.ForKind.SERIAL, whole)
    if length % lanes == 0:
        return loop
    return tirx.stmt_seq(loop, _vector(lanes, tir.index_const(length - lanes), body))


def _vector(lanes: int, at: Expr, body: _Element) -> Stmt:
    if lanes == 1:
        return body(at, tir.index_const(0))
    lane = tir.fresh("lane")
    return tirx.For(lane, tir.index_const(0), tir.size(lanes), tirx.ForKind.VECTORIZED, body(at, lane))


def _nest(extents: list[Size], leading: int, parallel: bool, task: Callable[[list[Expr], _Loops], Stmt]) -> Stmt:
    """Loops over `extents`, the `leading` ones as one parallel loop of tasks.

    `task` takes the indices of the leading axes, and what makes the loops over the others around a body, which takes
    all but the last index, and that.
    """
    at = tir.fresh("task")
    first = tir.unflatten(at, [tir.size(e) for e in extents[:leading]])

    def loops(body: _Body) -> Stmt:
        inner = [tir.fresh("outer") for _ in extents[leading:]]
        positions = [*first, *inner]
        nest = body(positions[:-1], positions[-1])
        for var, extent in reversed(list(zip(inner, extents[leading:], strict=True))):
            nest = tirx.For(var, tir.index_const(0), tir.size(extent), tirx.ForKind.SERIAL, nest)
        return nest

    kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
    return tirx.For(at, tir.index_const(0), tir.size(tir.product(extents[:leading])), kind, task(first, loops))
