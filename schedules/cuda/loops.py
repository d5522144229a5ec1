"""Plain loops on a GPU of any kind: what no other rule takes, each statement a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, StringImm, TensorLoad
from tvm.s_tir import SBlockRealize

from relaxc.schedules.cuda.common.launches import launches
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.statements import sequence
from relaxc.schedules.ir.types import Expr, For, PrimFunc, Size, Stmt, Target
from relaxc.schedules.template import Declined, Parameters, Template

__all__ = ["Loops"]

_THREADS = 256
_IN_ONE_BLOCK = 1024
"""Threads of a block that has a kernel to itself."""
_BARRIER = "tirx.tvm_storage_sync"
_SCOPE = "pragma_scope"
"""What TVM's sequences of extern code say of themselves."""
_OF_THE_HOST = ("packed", "extern")
"""In the names of calls that no kernel can make."""


class Loops(Template[list[Stmt], Gpu]):
    """Takes what is loops alone: scatters, opaque blocks. A thread an iteration where iterations are independent.

    Iterations are independent if the axis is a block's spatial one, or if a loop that is called parallel stores at its
    own variable. A loop around such loops runs in one block of threads, which wait for each other; all else is one
    thread's. No two threads write one element between two barriers: equal inputs give equal bits.
    """

    name = "cuda.loops"
    version = 1

    def matched(self, func: PrimFunc, target: Target) -> list[Stmt] | Declined:
        """Return the statements, each of which is a kernel."""
        if not isinstance(func.body, SBlockRealize):
            return Declined("it is lowered already")
        root = func.body.block
        if root.match_buffers or set(root.annotations) - {_SCOPE}:
            return Declined("its root block says more than loops")
        statements = _flat(root.body)
        calls = [str(getattr(call.op, "name", "")) for call in tir.collect(root.body, Call)]
        if of_host := [name for name in calls if any(part in name for part in _OF_THE_HOST)]:
            return Declined(f"it calls the host: {of_host[0]}")
        if any(isinstance(each, tirx.Bind) for each in statements):
            return Declined("its statements share a value")
        if any(not launches(each) and tir.collect(each, (tirx.AllocBuffer, tirx.DeclBuffer)) for each in statements):
            return Declined("a loop has a buffer of its own")
        return statements

    def emit(self, func: PrimFunc, form: list[Stmt], parameters: Parameters, gpu: Gpu) -> PrimFunc:
        """See `Template`."""
        root = func.body.block
        kernels = [each if launches(each) else _kernel(each) for each in form]
        body = sequence(*kernels)
        block = s_tir.SBlock([], [], [], root.name_hint, body, alloc_buffers=root.alloc_buffers)
        return tirx.PrimFunc(func.params, SBlockRealize([], True, block), func.ret_type, attrs=func.attrs)


def _flat(stmt: Stmt) -> list[Stmt]:
    """The statements in order, out of sequences, scopes, and blocks that are nothing but these."""
    if isinstance(stmt, tirx.SeqStmt):
        return [each for part in stmt.seq for each in _flat(part)]
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == _SCOPE:
        return _flat(stmt.body)
    if isinstance(stmt, SBlockRealize) and not stmt.iter_values and tir.as_int(stmt.predicate) == 1:
        block = stmt.block
        if not (block.init or block.alloc_buffers or block.match_buffers or set(block.annotations) - {_SCOPE}):
            return _flat(block.body)
    return [stmt]


def _kernel(stmt: Stmt) -> Stmt:
    """One statement as a kernel."""
    loops, body = _nest(stmt)
    if isinstance(body, SBlockRealize):
        spatial = _spatial(loops, body)
        if spatial is not None:
            return _spread(spatial, _around([loop for loop in loops if loop not in spatial], body))
    elif loops and _fills(loops, body):
        return _spread(loops, body)
    parallel, inner = _nest(stmt, tirx.ForKind.PARALLEL)
    if parallel and _independent(parallel, inner):
        return _spread(parallel, inner)
    serial, inner = _nest(stmt, tirx.ForKind.SERIAL)
    parallel, inner = _nest(inner, tirx.ForKind.PARALLEL)
    sizes = [size for loop in [*serial, *parallel] for size in (loop.min, loop.extent)]
    if parallel and _independent(parallel, inner) and not any(tir.loads(size) for size in sizes):
        return _in_turns(serial, parallel, inner)
    return _bound("blockIdx.x", 1, lambda _: _bound("threadIdx.x", 1, lambda _: _serial(stmt)))


def _nest(stmt: Stmt, kind: int | None = None) -> tuple[list[For], Stmt]:
    """The loops around the rest, all of one kind if one is asked for."""
    loops: list[For] = []
    while isinstance(stmt, tirx.For) and (kind is None or stmt.kind == kind) and tir.as_int(stmt.step or 1) == 1:
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _spatial(loops: Sequence[For], realize: SBlockRealize) -> list[For] | None:
    """The loops of a block's spatial axes; None unless each axis is one loop, and is spatial or reduced."""
    block, values = realize.block, list(realize.iter_values)
    known = all(iv.iter_type in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce) for iv in block.iter_vars)
    if not known or not block.iter_vars or tir.collect(block.body, SBlockRealize):
        return None
    found = {}
    for iv, value in zip(block.iter_vars, values, strict=True):
        axis = next((loop for loop in loops if tir.same_var(value, loop.loop_var)), None)
        if axis is not None:
            found[axis] = not analysis.reduces(iv)
        elif tir.variables(value):
            return None
    return [loop for loop in loops if found[loop]] if len(found) == len(loops) else None


def _independent(loops: Sequence[For], body: Stmt) -> bool:
    """Whether each store is at the loops' variables, and not only at what is looked up by them."""
    stores = tir.collect(body, tirx.BufferStore)
    places = [_without_loads(list(store.indices)) for store in stores]
    return all(len(tir.uses(place, [loop.loop_var for loop in loops])) == len(loops) for place in places)


def _without_loads(indices: list[Expr]) -> list[Expr]:
    def nothing(load: TensorLoad) -> Expr:
        return tirx.const(0, str(load.ty.dtype))

    return [tvm_ffi.structural_map(index, (TensorLoad, nothing)) for index in indices]


def _fills(loops: Sequence[For], body: Stmt) -> bool:
    """Whether the loops store element after element of a buffer that they do not read, as a copy does."""
    if not isinstance(body, tirx.BufferStore) or any(tir.as_int(loop.min) != 0 for loop in loops):
        return False
    if any(load.source.same_as(body.buffer) for load in tir.loads(body)):
        return False
    place = tir.flatten([loop.loop_var for loop in loops], [loop.extent for loop in loops])
    rest = tir.simplify(tir.flatten(list(body.indices), list(body.buffer.shape)) - place)
    return not tir.uses(rest, [loop.loop_var for loop in loops]) and not tir.loads(rest)


def _spread(loops: Sequence[For], body: Stmt) -> Stmt:
    """A thread an iteration of `loops`, which are from the outside to the inside."""
    total = tir.product([loop.extent for loop in loops])
    return _bound(
        "blockIdx.x",
        tir.ceil_div(total, _THREADS),
        lambda block: _bound(
            "threadIdx.x", _THREADS, lambda thread: _at(block * _THREADS + thread, total, loops, body)
        ),
    )


def _in_turns(serial: Sequence[For], parallel: Sequence[For], body: Stmt) -> Stmt:
    """One block of threads for all: an iteration of `parallel` a thread, and a barrier before the next of `serial`."""
    total = tir.product([loop.extent for loop in parallel])

    def turns(thread: Expr) -> Stmt:
        part = tir.fresh("part")
        parts = tir.size(tir.ceil_div(total, _IN_ONE_BLOCK))
        spread = _at(part * _IN_ONE_BLOCK + thread, total, parallel, body)
        turn = tirx.For(part, tir.index_const(0), parts, tirx.ForKind.SERIAL, spread)
        return _around(serial, sequence(turn, tirx.Evaluate(Call(_BARRIER, [StringImm("shared")], ret_ty="void"))))

    return _bound("blockIdx.x", 1, lambda _: _bound("threadIdx.x", _IN_ONE_BLOCK, turns))


def _at(position: Expr, total: Size, loops: Sequence[For], body: Stmt) -> Stmt:
    """The iteration at a row-major position of the loops, if there is one."""
    extents = [1 if tir.as_int(loop.extent) == 0 else loop.extent for loop in loops]  # without one nothing is computed
    places = tir.unflatten(position, extents)
    bound = [
        tirx.Bind(loop.loop_var, (place + loop.min).astype(str(loop.loop_var.ty.dtype)))
        for loop, place in zip(loops, places, strict=True)
    ]
    return tirx.IfThenElse(position < tir.size(total), sequence(*bound, _serial(body)), None)


def _around(loops: Sequence[For], body: Stmt) -> Stmt:
    for loop in reversed(loops):
        body = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)
    return body


def _serial(stmt: Stmt) -> Stmt:
    """The same with parallel loops one iteration after the other."""

    def serial(loop: For) -> For:
        return _around([loop], loop.body) if loop.kind == tirx.ForKind.PARALLEL else loop

    return tvm_ffi.structural_map(stmt, (tirx.For, serial))


def _bound(tag: str, extent: Size, body: Callable[[Expr], Stmt]) -> Stmt:
    thread = tir.fresh(tag.replace(".", "_"))
    axis = tirx.IterVar(None, tir.fresh(tag), tirx.IterVar.ThreadIndex, tag)
    size = tir.size(extent)
    return tirx.For(thread, tir.index_const(0), size, tirx.ForKind.THREAD_BINDING, body(thread), thread_binding=axis)
