"""Sizes that are known at the call alone: which a kernel has, and what is guessed of them where only speed asks."""

from __future__ import annotations

from tvm import tirx

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Buffer, Expr, PrimFunc, Size, Var

__all__ = ["at_least_one", "buffers_of", "divided", "guess", "known_or", "symbols_of", "unbound_size"]

_GUESSED = 32
"""A size that is known at the call alone, where it matters for speed."""


def buffers_of(func: PrimFunc) -> list[Buffer]:
    """Return the parameters that are buffers; others are sizes."""
    return [param for param in func.params if tirx.is_buffer_var(param)]


def symbols_of(func: PrimFunc) -> tuple[Var, ...]:
    """Return the sizes that are known at the call alone: dims of operands, and numbers that the program gives."""
    dims = [dim for buffer in buffers_of(func) for dim in buffer.shape]
    given = [param for param in func.params if not tirx.is_buffer_var(param) and str(param.ty.dtype) == tir.INDEX]
    return tuple(tir.variables([*dims, *given]))


def unbound_size(func: PrimFunc) -> str:
    """Return why the launch of a text does not know each size, by an operand or by a parameter of its own; or ''."""
    known = [dim for buffer in buffers_of(func) for dim in buffer.shape]
    known += [param for param in func.params if not tirx.is_buffer_var(param)]
    if any(not any(tir.same_var(each, var) for each in known) for var in symbols_of(func)):
        return "a size is no dim of an operand"
    return ""


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
