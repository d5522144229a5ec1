"""Reading and building TIR: walks, substitution, sizes and positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Range, TensorLoad
from tvm.sym import Analyzer

from relaxc.schedules.ir.dtypes import dtype_bits
from relaxc.schedules.ir.types import (
    Buffer,
    BufferStore,
    Expr,
    Node,
    Size,
    Stmt,
    Var,
)

__all__ = [
    "analyzer_of",
    "as_int",
    "ceil_div",
    "collect",
    "conditions",
    "conjuncts",
    "flatten",
    "fresh",
    "from_zero",
    "hidden",
    "index_const",
    "is_if_then_else",
    "is_nan",
    "loads",
    "loads_what_it_stores",
    "product",
    "replace_loads",
    "same",
    "same_size",
    "same_var",
    "simplify",
    "simplify_store",
    "size",
    "statements",
    "steps_by_one",
    "stride",
    "substitute",
    "unflatten",
    "uses",
    "variables",
    "zero",
]

INDEX = "int64"
"""The type of indices and sizes."""

_FRACTION_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
"""Bits of the fraction of a float, below those of its exponent, which are all set in infinity."""

_ON = tvm_ffi.structural.WalkResult.ADVANCE
_WALK = tvm_ffi.get_global_func("ffi.StructuralWalk")


def collect(root: Node, kinds: type | tuple[type, ...]) -> list[Any]:
    """Return every node of one of `kinds` below `root`, once for each place it occurs at, children first."""
    found: list[Any] = []

    def visit(node: Node) -> Any:
        found.append(node)
        return _ON

    # `tvm_ffi.structural_walk` does the same, and spends most of its time on looking up the types anew
    _WALK(root, [(index, visit) for index in _type_indices(kinds)], (), int(tvm_ffi.structural.WalkOrder.POSTORDER))
    return found


@lru_cache
def _type_indices(kinds: type | tuple[type, ...]) -> tuple[int, ...]:
    """By what TVM's objects know these types."""
    each = kinds if isinstance(kinds, tuple) else (kinds,)
    return tuple(kind.__tvm_ffi_type_info__.type_index for kind in each)  # type: ignore[attr-defined]


def variables(expr: Node) -> list[Var]:
    """Return the index variables that `expr` uses, without buffers, each once."""
    found: list[Var] = []
    for var in collect(expr, tirx.Var):
        if not tirx.is_buffer_var(var) and not any(var.same_as(other) for other in found):
            found.append(var)
    return found


def uses(expr: Node, candidates: Iterable[Var]) -> list[Var]:
    """Those of `candidates` (variables) that `expr` uses, in their order."""
    used = variables(expr)
    return [var for var in candidates if any(var.same_as(other) for other in used)]


def loads(expr: Node) -> list[TensorLoad]:
    """Return every load from a buffer in `expr`: nodes with `.source` and `.indices`."""
    return collect(expr, TensorLoad)


def substitute(node: Node, values: Mapping[Var, Expr]) -> Any:
    """Return `node` with each variable (or buffer) replaced by its value."""
    return tvm_ffi.structural_map(node, (tirx.Var, lambda var: values.get(var, var)))


def simplify(expr: Expr, extents: Mapping[Var, Size] | None = None) -> Expr:
    """Return `expr` simplified, given that each variable of `extents` runs from 0 up to its extent."""
    return analyzer_of(extents or {}).simplify(expr)


def analyzer_of(extents: Mapping[Var, Size]) -> Analyzer:
    """Return what knows that each variable of `extents` runs from 0 up to its extent."""
    analyzer = Analyzer()
    for var, extent in extents.items():
        analyzer.bind(var, from_zero(var, extent))
    return analyzer


def from_zero(var: Var, extent: Size) -> Range:
    """Return the range from 0 up to `extent`, in the type of `var`: where that is 1, the start takes its place."""
    dtype = str(var.ty.dtype)
    return Range.from_min_extent(
        zero(var), tirx.const(extent, dtype) if isinstance(extent, int) else extent.astype(dtype)
    )


def as_int(expr: Size) -> int | None:
    """Return the value of a constant, or None for a symbolic size."""
    if isinstance(expr, int):
        return expr
    value = getattr(expr, "value", None)
    return int(value) if isinstance(expr, tirx.IntImm) and value is not None else None


def product(extents: Sequence[Size]) -> Any:
    """Return the product of sizes: an int where all are constant, else an int64 expression."""
    known = [as_int(extent) for extent in extents]
    if all(value is not None for value in known):
        return prod(value for value in known if value is not None)
    total: Expr = index_const(1)
    for extent in extents:
        total = total * extent
    return simplify(total)


def index_const(value: int) -> Expr:
    """Return the constant `value` in the type of indices."""
    return tirx.const(value, INDEX)


def size(extent: Size) -> Expr:
    """Return `extent` as an expression in the type of indices."""
    return index_const(extent) if isinstance(extent, int) else extent.astype(INDEX)


def flatten(indices: Sequence[Expr], extents: Sequence[Size]) -> Expr:
    """Return the row-major position of `indices` in a space of `extents`: `(i, j) in (m, n) → i * n + j`."""
    if not indices:
        return index_const(0)
    position, *_ = indices
    for index, extent in zip(indices[1:], extents[1:], strict=True):
        position = position * extent + index
    return position


def unflatten(position: Expr, extents: Sequence[Size]) -> list[Expr]:
    """Return the indices of a row-major `position` in a space of `extents`; the inverse of `flatten`.

    The outermost index takes no modulo, so a position beyond the end runs off in that dim only.
    """
    indices: list[Expr] = []
    for extent in reversed(list(extents)[1:]):
        extent = size(extent) if isinstance(extent, int) else extent
        indices.append(tirx.floormod(position, extent))
        position = tirx.floordiv(position, extent)
    return [*reversed([*indices, position])][: len(extents)]


def same(a: Node, b: Node) -> bool:
    """Return whether two expressions are the same tree."""
    return bool(tvm_ffi.structural_equal(a, b))


def replace_loads(node: Node, buffer: Buffer, value: Callable[[TensorLoad], Expr]) -> Any:
    """Return `node` with each load from `buffer` replaced by what `value` gives for it."""
    return tvm_ffi.structural_map(node, (TensorLoad, lambda load: value(load) if load.source.same_as(buffer) else load))


def simplify_store(store: BufferStore) -> BufferStore:
    """Return a store with its value's and its own indices simplified."""
    analyzer = Analyzer()
    return tirx.BufferStore(store.buffer, analyzer.simplify(store.value), [analyzer.simplify(i) for i in store.indices])


def statements(stmt: Stmt) -> list[Stmt]:
    """Return the statements of a sequence; one statement is a sequence of one."""
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]


def zero(expr: Expr) -> Expr:
    """Return the constant 0 of the type of `expr`."""
    return tirx.const(0, str(expr.ty.dtype))


def hidden(value: Expr) -> Expr:
    """Return the same number, as one that TVM's arithmetic knows nothing of: LLVM and nvcc see through it."""
    dtype = str(value.ty.dtype)
    bits = dtype.removeprefix("u") if dtype.startswith("u") else f"uint{dtype_bits(dtype)}"
    return tirx.reinterpret(dtype, tirx.reinterpret(bits, value))


def fresh(name: str) -> Var:
    """Return a new variable in the type of indices."""
    return tirx.Var(name, INDEX)


def conditions(expr: Node) -> list[Expr]:
    """Return every select and if_then_else in `expr`."""
    calls = [c for c in collect(expr, Call) if is_if_then_else(c)]
    return [*calls, *collect(expr, tirx.Select)]


def conjuncts(condition: Expr) -> list[Expr]:
    """Return the parts of a conjunction; none of what is always true."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [] if as_int(condition) == 1 else [condition]


def is_if_then_else(node: Node) -> bool:
    """Return whether `node` is an if_then_else of an expression, which TVM 0.27 has in its dialect `prim`."""
    return isinstance(node, Call) and getattr(node.op, "name", "") == "prim.if_then_else"


def is_nan(value: Expr) -> Expr:
    """Return whether a float is NaN, by its bits: fast-math code assumes that no comparison of floats sees one."""
    dtype = str(value.ty.dtype)
    bits = dtype_bits(dtype)
    sign = 1 << (bits - 1)
    magnitude = tirx.reinterpret(f"int{bits}", value) & tirx.const(sign - 1, f"int{bits}")
    return magnitude > tirx.const(sign - (1 << _FRACTION_BITS[dtype]), f"int{bits}")


def same_var(a: Expr, b: Expr) -> bool:
    """Return whether both are the same variable."""
    return isinstance(a, tirx.Var) and bool(a.same_as(b))


def stride(position: Expr, var: Var, bounds: Mapping[Var, Size]) -> int | None:
    """Return how far `position` goes with each step of `var`, if that is always as far; variables stay in `bounds`."""
    if not uses(position, [var]):
        return 0
    following = substitute(position, {var: var + 1})
    return as_int(simplify(following - position, {**bounds, var: bounds[var] - 1}))


def steps_by_one(position: Expr, var: Var, bounds: Mapping[Var, Size]) -> bool:
    """Return whether `position` is `var` plus something that does not use it, while variables stay in `bounds`."""
    rest = simplify(position - var, bounds)
    return not uses(rest, [var])


def same_size(a: Size, b: Size) -> bool:
    """Return whether two sizes are provably equal."""
    return as_int(simplify(size(a) - size(b))) == 0


def loads_what_it_stores(expr: Expr, store: BufferStore) -> bool:
    """Return whether `expr` is a load of the element that `store` writes."""
    if not isinstance(expr, TensorLoad) or not expr.source.same_as(store.buffer):
        return False
    return bool(tvm_ffi.structural_equal(expr.indices, store.indices))


def ceil_div(extent: Size, divisor: int) -> Any:
    """Return `extent / divisor` rounded up: an int where `extent` is one."""
    if isinstance(extent, int):
        return -(-extent // divisor)
    return simplify(tirx.floordiv(extent + (divisor - 1), divisor))
