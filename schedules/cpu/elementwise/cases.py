"""Elementwise loops whose value depends on conditions of outer axes: a loop for each case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.strides import Strided
from relaxc.schedules.ir.types import Expr, Node, Stmt, Var

__all__ = ["by_case", "case_depth"]


def by_case(found: Strided, outer: Sequence[Expr], loops: Callable[[Strided], Stmt]) -> Stmt:
    """Return `loops(case)` for the block's value in each case of its chain of if_then_else, at positions `outer`.

        for i: out[i] = f(p ? a[i] : q ? b[i] : c[i])   →   if p: for i: out[i] = f(a[i])  else: if q: …

    The chain is one whose conditions are of the first axes alone, as many as `outer` has positions. Of two chains
    neither is taken apart: their cases would multiply.
    """
    inner = [var for axis in found.axes[len(outer) :] for var in axis.vars]
    chain = _chain(found, inner)
    if chain is None:
        return loops(found)
    places = dict(found.ones)
    for axis, position in zip(found.axes, outer, strict=False):
        places |= axis.indices(position)

    def cases(value: Expr) -> Stmt:
        if not _is_case(value, inner):
            store = found.body
            of_case = tirx.BufferStore(store.buffer, _put(store.value, chain, value), store.indices)
            return loops(replace(found, body=of_case))
        condition, taken, other = value.args
        return tirx.IfThenElse(tir.simplify(tir.substitute(condition, places)), cases(taken), cases(other))

    return cases(chain)


def case_depth(found: Strided) -> int:
    """Return how many of the first axes the chain that `by_case` would take apart needs; 0 where there is none."""
    chain = _chain(found, list(found.axes[-1].vars))
    if chain is None:
        return 0
    used = [node.args[0] for node in tir.conditions(chain) if _is_case(node, list(found.axes[-1].vars))]
    return max((i + 1 for i, axis in enumerate(found.axes) if any(tir.uses(c, axis.vars) for c in used)), default=0)


def _chain(found: Strided, inner: list[Var]) -> Expr | None:
    """The outermost if_then_else whose condition uses none of `inner`, if all others like it are within it."""
    value = found.body.value
    inside = [node for node in tir.conditions(value) if _is_case(node, inner)]
    if not inside:
        return None
    rest = _put(value, inside[-1], tirx.const(0, str(inside[-1].ty.dtype)))
    return None if any(_is_case(node, inner) for node in tir.conditions(rest)) else inside[-1]


def _is_case(node: Node, inner: list[Var]) -> bool:
    return tir.is_if_then_else(node) and not tir.uses(node.args[0], inner) and not tir.loads(node.args[0])


def _put(value: Expr, old: Expr, new: Expr) -> Expr:
    """`value` with `new` in all places of `old`."""
    return tvm_ffi.structural_map(value, (Call, lambda call: new if tir.same(call, old) else call))
