"""What attention reads and where it writes: operands and results seen through the movements of heads around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import relax, tirx

from relaxc.schedules.ir import tir
from relaxc.service.passes.common.rewrite import Scope
from relaxc.service.passes.common.views import View, broadcast, look_through
from relaxc.service.passes.precision.dtypes import is_low
from relaxc.service.passes.simplify.simplify_shapes import shape_of

__all__ = ["Axes", "Tensors", "keeps_columns", "operand", "place"]


@dataclass(frozen=True)
class Axes:
    """The variables that all indices within one attention are written in, and their extents."""

    batch: tuple[Any, ...]
    m: Any
    n: Any
    d: Any
    e: Any
    bounds: dict[Any, Any]

    @classmethod
    def of(cls, batch: Sequence[Any], queries: Any, keys: Any, width: Any) -> Axes:
        """Return the depth is not known yet: its extent is added with `with_depth`."""
        leading = tuple(tirx.Var(f"b{i}", "int64") for i in range(len(batch)))
        m, n, d, e = (tirx.Var(name, "int64") for name in "mnde")
        bounds = dict(zip((*leading, m, n, e), (*batch, queries, keys, width), strict=True))
        return cls(leading, m, n, d, e, bounds)

    def with_depth(self, depth: Any) -> Axes:
        """Return the same with an extent of `d` too."""
        return replace(self, bounds=self.bounds | {self.d: depth})

    def is_at(self, index: Any, axis: Any) -> bool:
        """Return whether `index` is `axis`; along an axis of one element it is written as 0."""
        return tir.same_var(index, axis) or (tir.as_int(self.bounds[axis]) == 1 and tir.as_int(index) == 0)


@dataclass
class Tensors:
    """What the kernel reads, each once, and functions that load from them."""

    axes: Axes
    found: list[relax.Expr] = field(default_factory=list)

    def element(self, view: View, *free: Any) -> Callable[..., Any]:
        """Return the operand as a function of (tensors, indices of the batch, values of `free`)."""
        at = self._at(view.source)
        tables = [(each, self._at(each.table)) for each in view.gathered]

        def load(tensors: Sequence[Any], batch: Sequence[Any], *places: Any) -> Any:
            values = dict(zip((*self.axes.batch, *free), (*batch, *places), strict=True))
            for page, table in tables:
                value = tensors[table](*(tir.substitute(each, values) for each in page.index)).astype("int64")
                last = tirx.const(page.size - 1, "int64")
                values[page.var] = tirx.Max(tirx.Min(value, last), tirx.const(0, "int64"))
            value = tensors[at](*(tir.substitute(each, values) for each in view.index))
            value = value.astype("float32") if is_low(view.source) else value
            return value if view.scale == 1.0 else value * tirx.const(view.scale, "float32")

        return load

    def number(self, expr: relax.Expr) -> Callable[[Sequence[Any]], Any]:
        """Return the element of a tensor of one as a function of the tensors."""
        at = self._at(expr)
        return lambda tensors: tensors[at](*[0] * len(tensors[at].shape))

    def _at(self, expr: relax.Expr) -> int:
        known = next((i for i, other in enumerate(self.found) if other.same_as(expr)), None)
        if known is None:
            self.found.append(expr)
        return len(self.found) - 1 if known is None else known


def keeps_columns(result: View, outer: dict[Any, Any], width: Any) -> bool:
    """Return whether the columns of the product are next to each other in the result that they are moved to."""
    last = list(outer)[-1]
    rest = tir.simplify(result.index[-1] - tirx.floormod(last, width), outer)
    return tir.as_int(width) is not None and tir.as_int(rest) == 0


def place(result: View, at: dict[Any, Any]) -> tuple[list[Any], Any, Any]:
    *batch, m, e = (tir.substitute(each, at) for each in result.index)
    return batch, m, e


def operand(
    expr: relax.Expr,
    index: Sequence[Any],
    axes: Axes,
    free: tuple[Any, Any],
    scope: Scope,
    *,
    scales: bool = False,
    gathers: bool = False,
    unscaled: bool = False,
) -> View:
    """Return `expr` at `index`, read back while rows and columns (`free`) have constant strides.

    With `gathers`, rows may be of pages that a table names; with `unscaled`, `expr` may be in 16 bits and multiplied by
    a number in fp32, whose rounding is left out.
    """
    start = View(expr, broadcast(index, shape_of(expr) or []))
    contiguous = free[1] if not scales else None

    def accept(view: View) -> bool:
        sizes = shape_of(view.source)
        if sizes is None or (unscaled and not is_low(view.source)):
            return False
        position = tir.flatten(view.index, sizes)
        if view.gathered:
            return len(view.gathered) == 1 and tir.as_int(_stride(position, free[1], _bounds(view, axes)) or 0) == 1
        strides = [_stride(position, var, axes.bounds) for var in free]
        return all(each is not None for each in strides) and (contiguous is None or tir.as_int(strides[1]) == 1)

    return look_through(
        start, scope, axes.bounds, accept=accept, scales=scales or unscaled, gathers=gathers, casts=unscaled
    )


def _bounds(view: View, axes: Axes) -> dict[Any, Any]:
    return {**axes.bounds, **{each.var: each.size for each in view.gathered}}


def _stride(position: Any, var: Any, bounds: dict[Any, Any]) -> Any | None:
    """How far apart in memory neighbours along `var` are, if that is the same everywhere."""
    without = tir.simplify(tir.substitute(position, {var: tir.zero(var)}), bounds)
    rest = tir.simplify(position - without, bounds)
    one = tir.simplify(tir.substitute(rest, {var: tirx.const(1, "int64")}), bounds)
    known = tir.as_int(tir.simplify(rest - one * var, bounds)) == 0
    return one if known and not tir.uses(one, bounds) else None
