"""Loops over sizes that are known at the call alone: tiles that end where the image does, tasks of even shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.statements import buffer
from relaxc.schedules.ir.types import Expr, For, PrimFunc, Stmt, Var

__all__ = ["even_tasks", "first_of", "of_width", "overlapped", "parallel_nest", "unguarded", "widths"]


def overlapped(func: PrimFunc, tile: Var, size: int) -> PrimFunc:
    """Return `func` with the last tile moved back to where its end is that of the loop it was split off.

        for tile in ceil(W / size): for i in size: if tile * size + i < W: f(tile * size + i)
        →   for tile in ceil(W / size): for i in size: f(min(tile * size, W - size) + i)

    What both of the last tiles compute is the same, and W is at least `size`: there is no predicate and no tail.
    """
    return _with_loop(func, tile, lambda loop: _overlapped(loop, size))


def _overlapped(loop: For, size: int) -> For:
    width = _split_extent(loop, size)
    start = tirx.min(loop.loop_var * size, width - size)
    body = _moved(_without_guards(loop.body, loop.loop_var), loop.loop_var, size, start)
    return _loop(loop, loop.extent, body)


def even_tasks(func: PrimFunc, task: Var, row: Var, size: int, cores: int) -> PrimFunc:
    """Return `func` with tasks of at most `size` rows that differ by few: as many rounds as before, each full.

        for task in ceil(H / size): for row in size: if task * size + row < H: f(task * size + row)
        →   for task in ceil(H / share): for row in min(share, H - task * share): f(task * share + row)

    where `share = ceil(H / (cores * ceil(H / (cores * size))))`.
    """

    def tasks(loop: For) -> For:
        height = _split_extent(loop, size)
        rounds = tirx.max(tir.ceil_div(height, cores * size), 1)
        share = tirx.max(tir.ceil_div(height, cores * rounds), 1)
        start = loop.loop_var * share
        body = _moved(_without_guards(loop.body, loop.loop_var), loop.loop_var, size, start)

        def rows(inner: For) -> For:
            return _loop(inner, tirx.min(share, height - start), inner.body) if inner.loop_var.same_as(row) else inner

        return _loop(loop, tir.ceil_div(height, share), tvm_ffi.structural_map(body, (tirx.For, rows)))

    return _with_loop(func, task, tasks)


def unguarded(func: PrimFunc) -> PrimFunc:
    """Return `func` with loops that end where a guard of the block in them does.

    for i in 13: if start + i < H: f(i)   →   for i in min(13, H - start): f(i)
    """

    def ended(loop: For) -> For:
        realizes = _directly_in(loop.body)
        if len(realizes) != 1:
            return loop
        kept: list[Expr] = []
        extent = loop.extent
        for guard in tir.conjuncts(realizes[0].predicate):
            bound = _bound(guard, loop.loop_var)
            kept, extent = (kept, tirx.min(extent, bound)) if bound is not None else ([*kept, guard], extent)
        if extent is loop.extent:
            return loop
        return _loop(loop, extent, _with_guards(loop.body, kept))

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, ended)))


def first_of(funcs: Sequence[PrimFunc], condition: Callable[[int], Expr]) -> PrimFunc:
    """Return the first of `funcs` whose condition holds when it is called, or else the last: they compute the same."""
    roots = [_own(func).body.block for func in funcs]
    body = roots[-1].body
    for at in reversed(range(len(funcs) - 1)):
        body = tirx.IfThenElse(condition(at), roots[at].body, body)
    buffers = [buffer for root in roots for buffer in root.alloc_buffers]
    first = roots[0]
    root = SBlock(
        first.iter_vars, first.reads, first.writes, first.name_hint, body,
        alloc_buffers=buffers, annotations=first.annotations,
    )  # fmt: skip
    return funcs[0].with_body(SBlockRealize([], True, root))


def _own(func: PrimFunc) -> PrimFunc:
    """`func` with buffers and loops that no other has: a buffer is defined once in a PrimFunc."""
    buffers = {
        each: buffer(each.name, *each.shape, dtype=str(each.dtype), scope=each.scope())
        for each in func.body.block.alloc_buffers
    }
    return func.with_body(tir.substitute(func.body, buffers))


def parallel_nest(func: PrimFunc, loops: Sequence[Var]) -> PrimFunc:
    """Return `func` with these loops, each of which is all of the body of the one before, as one parallel loop."""

    def fused(outer: For) -> For:
        nest = [outer]
        while len(nest) < len(loops):
            nest.append(nest[-1].body)
        assert all(loop.loop_var.same_as(var) for loop, var in zip(nest, loops, strict=True)), "no perfect nest"
        whole = tirx.Var("task", str(outer.loop_var.ty.dtype))
        values, rest = {}, whole
        for loop in reversed(nest[1:]):
            values[loop.loop_var], rest = tirx.floormod(rest, loop.extent), tirx.floordiv(rest, loop.extent)
        values[outer.loop_var] = rest
        body = tir.substitute(nest[-1].body, values)
        extent = tir.product([loop.extent for loop in nest])
        return tirx.For(whole, outer.min, extent, tirx.ForKind.PARALLEL, body, annotations=outer.annotations)

    return _with_loop(func, loops[0], fused)


def widths(most: int) -> list[int]:
    """Return the columns of the tiles, the widest first, of which a kernel chooses when it is called."""
    return list(dict.fromkeys((most, -(-most // 2), 1)))


def of_width(funcs: Sequence[PrimFunc], sizes: Sequence[int], cycles: Sequence[float], width: Expr) -> PrimFunc:
    """Return one PrimFunc of several by the `sizes` of their tiles, which take so many `cycles`, the widest first.

    When it is called, the first is taken whose tiles fit into `width` columns and take no longer than the next one's.
    """

    def is_best(at: int) -> Expr:
        times = [tir.ceil_div(width, sizes[i]) * round(cycles[i]) for i in (at, at + 1)]
        return tirx.all(width >= sizes[at], times[0] <= times[1])

    return first_of(funcs, is_best)


def _with_loop(func: PrimFunc, var: Var, change: Callable[[For], For]) -> PrimFunc:
    def changed(loop: For) -> For:
        return change(loop) if loop.loop_var.same_as(var) else loop

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, changed)))


def _loop(loop: For, extent: Expr, body: Stmt) -> For:
    return tirx.For(loop.loop_var, loop.min, extent, loop.kind, body, annotations=loop.annotations)


def _split_extent(loop: For, size: int) -> Expr:
    """The extent of the axis that `loop` was split off, of the block that is written with it."""
    for realize in reversed(tir.collect(loop.body, SBlockRealize)):
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if _step(value, loop.loop_var) == size:
                return axis.dom.extent
    raise AssertionError(f"no axis is walked by steps of {size}")


def _step(value: Expr, var: Var) -> int | None:
    """How much `value` grows by with `var`; None where that is no constant."""
    if not tir.uses(value, [var]):
        return 0
    return tir.as_int(tir.simplify(tir.substitute(value, {var: var + 1}) - value))


def _moved(body: Stmt, var: Var, size: int, start: Expr) -> Stmt:
    """`body` with `start` for `var * size`."""

    def value(expr: Expr) -> Expr:
        step = _step(expr, var)
        if step == 0:
            return expr
        assert step is not None and step % size == 0, f"{expr} is not walked by tiles"
        return tir.simplify(tir.substitute(expr, {var: tir.zero(var)})) + start * (step // size)

    def realized(realize: SBlockRealize) -> SBlockRealize:
        guards = [_moved_guard(guard, value) for guard in tir.conjuncts(realize.predicate)]
        values = [value(each) for each in realize.iter_values]
        return SBlockRealize(values, _all(guards), realize.block)

    return tvm_ffi.structural_map(body, (SBlockRealize, realized))


def _moved_guard(guard: Expr, value: Callable[[Expr], Expr]) -> Expr:
    return type(guard)(value(guard.a), value(guard.b)) if isinstance(guard, (tirx.LT, tirx.LE)) else guard


def _without_guards(body: Stmt, var: Var) -> Stmt:
    """`body` without what its blocks ask of `var` and of the loops that run with it over an axis's elements."""

    def realized(realize: SBlockRealize) -> SBlockRealize:
        guards = tir.conjuncts(realize.predicate)
        kept = [guard for guard in guards if not _asks_of_axis(guard, realize, var)]
        return SBlockRealize(realize.iter_values, _all(kept), realize.block)

    return tvm_ffi.structural_map(body, (SBlockRealize, realized))


def _asks_of_axis(guard: Expr, realize: SBlockRealize, var: Var) -> bool:
    """Whether `guard` uses `var` in a block that computes, which tiles keep inside, and not in one that pads."""
    return bool(tir.uses(guard, [var])) and realize.block.name_hint not in ("pad", "gated")


def _bound(guard: Expr, var: Var) -> Expr | None:
    """What `var` is less than where `guard` holds; None where it asks for anything else."""
    if not isinstance(guard, (tirx.LT, tirx.LE)) or _step(guard.a, var) != 1 or tir.uses(guard.b, [var]):
        return None
    bound = guard.b - tir.substitute(guard.a, {var: tir.zero(var)})
    return tir.simplify(bound + 1 if isinstance(guard, tirx.LE) else bound)


def _directly_in(body: Stmt) -> list[SBlockRealize]:
    return tir.collect(body, SBlockRealize)


def _with_guards(body: Stmt, guards: Sequence[Expr]) -> Stmt:
    def realized(realize: SBlockRealize) -> SBlockRealize:
        return SBlockRealize(realize.iter_values, _all(guards), realize.block)

    return tvm_ffi.structural_map(body, (SBlockRealize, realized))


def _all(guards: Sequence[Expr]) -> Expr:
    return tirx.all(*guards) if guards else tir.index_const(0) <= tir.index_const(0)
