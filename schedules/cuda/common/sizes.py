"""Sizes that are known at the call alone: which a kernel has, and what is guessed of them where only speed asks."""

from __future__ import annotations

from tvm import tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Expr, PrimFunc, Size, Var

__all__ = ["at_least_one", "divided", "guess", "known_or", "symbols_of", "unbound_size"]

_GUESSED = 32
"""A size that is known at the call alone, where it matters for speed."""


def symbols_of(func: PrimFunc) -> tuple[Var, ...]:
    """Return the sizes that are known at the call alone."""
    return tuple(tir.variables([dim for buffer in func.params for dim in buffer.shape]))


def unbound_size(func: PrimFunc) -> str:
    """Return why the launch of a text does not know each size from the shape of an operand, or ''."""
    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    dims = [dim for buffer in buffers for dim in buffer.shape]
    if any(not any(tir.same_var(dim, var) for dim in dims) for dim_ in dims for var in tir.variables(dim_)):
        return "a size is no dim of an operand"
    symbolic = any(tir.as_int(dim) is None for dim in dims)
    return "a size is a parameter of its own" if symbolic and len(buffers) < len(func.params) else ""


def known_or(size: Size) -> Size:
    """Return a size as an int where it is known."""
    known = tir.as_int(size)
    return size if known is None else known


def guess(size: Size) -> int:
    """Return the size, or what it may be for symbols that are neither small nor large."""
    if (known := tir.as_int(size)) is not None:
        return known
    values = {var: tirx.const(_GUESSED, str(var.ty.dtype)) for var in tir.variables(size)}
    return int(tir.simplify(tir.substitute(size, values)))


def divided(size: Size, by: int) -> Size:
    """Return a size that `by` divides in as many parts."""
    return size // by if isinstance(size, int) else tir.simplify(tirx.floordiv(size, by))


def at_least_one(grid: Size) -> int | Expr:
    """Return a grid that may be launched where a size at the call is 0: its kernel must do nothing then."""
    return grid if isinstance(grid, int) else tirx.Max(grid, tir.index_const(1))
