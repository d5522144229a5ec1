"""Sizes that the data decides are defined before what has them.

    y = fused(x, places)  # [n, 4]; m = match_cast(count, [n])   →   m = match_cast(count, [n]); y = fused(x, places)

FuseOps orders the bindings of a block anew where it fuses any, by the values that they read, and a size is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import with_functions

__all__ = ["DefineSizesFirst"]


@tvm.transform.module_pass(opt_level=0, name="DefineSizesFirst")
class DefineSizesFirst:
    """Behind FuseOps: in each block the bindings that define a size stand before those that have it in their types."""

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with its bindings in such an order; the same object where they are."""
        found = {}
        for name, func in module.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                given = {size for each in func.params for size in relax.analysis.tir_vars_in_type(each.ty)}
                blocks = [_ordered(block, given) for block in func.body.blocks]
                if not all(new.same_as(old) for new, old in zip(blocks, func.body.blocks, strict=True)):
                    body = relax.SeqExpr(blocks, func.body.body)
                    found[name] = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        return with_functions(module, found) if found else module


def _ordered(block: Any, given: set[Any]) -> Any:
    """The block, each binding behind those that define its values and sizes; the same object where they stand so.
    Sizes that it defines are `given` from then on.
    """
    bindings = list(block.bindings)
    casts = [at for at, binding in enumerate(bindings) if isinstance(binding, relax.MatchCast)]
    named = {at: set(relax.analysis.tir_vars_in_type(bindings[at].ty)) - given for at in casts}
    if not any(named.values()):
        return block
    values = {binding.var: at for at, binding in enumerate(bindings)}
    free = [list(relax.analysis.free_vars(binding.value)) for binding in bindings]
    types = [set(relax.analysis.tir_vars_in_type(binding.var.ty)) - given for binding in bindings]
    reads = [[values[each] for each in own if each in values] for own in free]
    defined: dict[Any, int] = {}
    for at in casts:
        if new := named[at] - defined.keys():  # others are checks, of values that have the size
            new -= {size for other in _in_order([at], reads) if other != at for size in types[other]}
            defined |= dict.fromkeys(new, at)
    for at, sizes in enumerate(types):
        used = [*sizes, *free[at]]  # in its type, or given to a kernel as a number
        reads[at] = [*(defined[each] for each in used if defined.get(each, at) != at), *reads[at]]
    given |= defined.keys()
    order = _in_order(range(len(bindings)), reads)
    return block if order == sorted(order) else type(block)([bindings[at] for at in order])


def _in_order(wanted: Iterable[int], needs: Sequence[Sequence[int]]) -> list[int]:
    """Return `wanted`, each behind all that it needs."""
    order: dict[int, None] = {}
    waiting = list(wanted)[::-1]
    while waiting:
        lacking = [each for each in needs[waiting[-1]] if each not in order]
        if lacking and waiting[-1] not in order:
            waiting += reversed(lacking)
        else:
            order[waiting.pop()] = None
    return list(order)
