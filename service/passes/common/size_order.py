"""Symbolic sizes as PrimFuncs' parameters in an order that the model decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.relax import block_builder

__all__ = ["sizes_in_order"]


@contextmanager
def sizes_in_order() -> Iterator[None]:
    """Have BlockBuilder pass sizes to a new PrimFunc in the order in which its tensors and then its body name them.

    TVM 0.27 passes those that are no tensor's dim by themselves, such as the `a` and `b` of a dim `a + b`, in the order
    of a set of pointers (`relax.utils.gen_call_tir_inputs`), which is another in each run: equal models would give
    unequal artifacts. The order has to be right before the builder looks for an equal PrimFunc.
    """
    given = block_builder.gen_call_tir_inputs
    if getattr(given, "in_order", False):
        yield
        return

    def ordered(function: Any, *args: Any, **kwargs: Any) -> tuple[Any, list[Any], Any]:
        prim_func, arguments, types = given(function, *args, **kwargs)
        return (*_in_order(prim_func, list(arguments)), types)

    ordered.in_order = True  # type: ignore[attr-defined]
    block_builder.gen_call_tir_inputs = ordered
    try:
        yield
    finally:
        block_builder.gen_call_tir_inputs = given


def _in_order(prim_func: Any, arguments: list[Any]) -> tuple[Any, list[Any]]:
    """The PrimFunc with the sizes at the end of its inputs in order, and the call's arguments with them."""
    params = list(prim_func.params)
    end = len(arguments)
    start = end
    while start and not tirx.is_buffer_var(params[start - 1]):
        start -= 1
    if end - start < 2:
        return prim_func, arguments
    places = _places(prim_func)
    order = sorted(range(start, end), key=lambda at: places.get(params[at], len(places)))
    chosen = [*range(start), *order, *range(end, len(params))]
    moved = tirx.PrimFunc([params[at] for at in chosen], prim_func.body, prim_func.ret_type, prim_func.attrs)
    return moved, [arguments[at] for at in chosen[:end]]


def _places(prim_func: Any) -> dict[Any, int]:
    """Each variable's place among those that the buffers' shapes and then the body name."""
    places: dict[Any, int] = {}

    def visit(variable: Any) -> None:
        places.setdefault(variable, len(places))

    shapes = [dim for param in prim_func.params if tirx.is_buffer_var(param) for dim in param.ty.shape]
    for part in (*shapes, prim_func.body):
        tvm_ffi.structural_walk(part, (ir.Var, visit))
    return places
