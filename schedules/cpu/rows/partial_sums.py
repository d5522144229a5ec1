"""A reduction rewritten as partial results in vector lanes and a reduction over these."""

from __future__ import annotations

from tvm import s_tir, tirx

from relaxc.schedules.ir import analysis, tir
from relaxc.schedules.ir.blocks import loop_nest
from relaxc.schedules.ir.dtypes import is_condition
from relaxc.schedules.ir.types import Buffer, Expr, IterVar, PrimFunc, SBlock, Size, Stmt, Var

__all__ = ["PARTIAL", "operator_of", "row_form"]

PARTIAL = "_lanes"
"""What the name of the block of partial results adds to that of its reduction."""


def row_form(func: PrimFunc, name: str, lanes: int) -> PrimFunc | None:
    """Return `func` with the reduction `name` over its flattened axes k split into lanes; None where that cannot be.

        s[r] = op(s[r], x[r, k])
        →   p[r, l] = op(p[r, l], x[r, k0 * lanes + l]) if k0 * lanes + l < K else p[r, l]
            s[r]    = op(s[r], p[r, l])

    `op` must be a sum, product, minimum or maximum that starts from its identity, and k longer than two
    vectors. TVM's own `rfactor` is not used: its block carries a predicate, which `compute_at` drops.
    """
    nest = analysis.nest_of(func, name)
    if nest is None or not analysis.is_reduction(nest.block):
        return None
    block = nest.block
    spatial = [iv for iv in block.iter_vars if not analysis.reduces(iv)]
    reduced = [iv for iv in block.iter_vars if analysis.reduces(iv)]
    length = tir.product([iv.dom.extent for iv in reduced])
    operator = operator_of(block)
    if operator is None or (isinstance(length, int) and length < 2 * lanes):
        return None
    op, term = operator
    store = block.body
    shape = [tir.size(iv.dom.extent) for iv in spatial]
    partial = tirx.decl_buffer([*shape, tir.size(lanes)], str(store.buffer.dtype), f"{store.buffer.name}{PARTIAL}")

    def lane_body(v: list[Var]) -> tuple[Stmt, Stmt]:
        rows, step, lane = v[:-2], v[-2], v[-1]
        place = step * lanes + lane
        values = dict(zip([iv.var for iv in spatial], rows, strict=True))
        values |= dict(zip([iv.var for iv in reduced], tir.unflatten(place, _sizes(reduced)), strict=True))
        so_far = partial[(*rows, lane)] if rows else partial[lane]
        update = op(so_far, tir.substitute(term, values))
        if not isinstance(length, int) or length % lanes:
            update = tirx.if_then_else(place < tir.size(length), update, so_far)
        return tirx.BufferStore(partial, update, [*rows, lane]), tirx.BufferStore(
            partial, block.init.value, [*rows, lane]
        )

    def row_body(v: list[Var]) -> tuple[Stmt, Stmt]:
        rows, lane = v[:-1], v[-1]
        values = dict(zip([iv.var for iv in spatial], rows, strict=True))
        indices = [tir.substitute(index, values) for index in store.indices]
        element = partial[(*rows, lane)] if rows else partial[lane]
        loaded = store.buffer[tuple(indices)]
        return tirx.BufferStore(store.buffer, op(loaded, element), indices), tirx.BufferStore(
            store.buffer, block.init.value, indices
        )

    axes = [(f"r{i}", iv.dom.extent, False) for i, iv in enumerate(spatial)]
    steps = tir.ceil_div(length, lanes)
    first = loop_nest(name + PARTIAL, [*axes, ("k", steps, True), ("l", lanes, False)], lane_body)
    second = loop_nest(name, [*axes, ("l", lanes, True)], row_body)
    return _replaced(func, block, [first, second], partial)


def _sizes(reduced: list[IterVar]) -> list[Size]:
    return [tir.product([iv.dom.extent]) for iv in reduced]


def operator_of(block: SBlock) -> tuple[type, Expr] | None:
    """Return op and the reduced term of `s = op(s, term)`, if `s` starts from op's identity."""
    value, dtype = block.body.value, str(block.body.buffer.dtype)
    has_limits = not is_condition(dtype)
    identities = {
        tirx.Add: tirx.const(0, dtype),
        tirx.Mul: tirx.const(1, dtype),
        tirx.Max: tirx.min_value(dtype) if has_limits else None,
        tirx.Min: tirx.max_value(dtype) if has_limits else None,
    }
    for kind, identity in identities.items():
        if not isinstance(value, kind) or identity is None:
            continue
        lowest = kind in (tirx.Max, tirx.Min) and _is_infinite(block.init.value)
        if not (tir.same(block.init.value, identity) or lowest):
            return None
        for this, other in ((value.a, value.b), (value.b, value.a)):
            if tir.loads_what_it_stores(this, block.body):
                uses_result = any(load.source.same_as(block.body.buffer) for load in tir.loads(other))
                return None if uses_result else (kind, other)
    return None


def _is_infinite(value: Expr) -> bool:
    return abs(float(getattr(value, "value", 0))) == float("inf")


def _replaced(func: PrimFunc, block: SBlock, nests: list[Stmt], buffer: Buffer) -> PrimFunc:
    root = func.body.block
    body: list[Stmt] = []
    for nest in tir.statements(root.body):
        inside = [realize.block for realize in tir.collect(nest, s_tir.SBlockRealize)]
        body.extend(nests if any(b.same_as(block) for b in inside) else [nest])
    new = s_tir.SBlock([], [], [], "root", tirx.stmt_seq(*body), alloc_buffers=[*root.alloc_buffers, buffer])
    return func.with_body(s_tir.SBlockRealize([], True, new))
