"""Norms over groups of channels of NHWC images, read from a PrimFunc and written as CUDA text."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.cuda.common.expression import LOW, Pair, Unsupported
from relaxc.schedules.cuda.rows import form as rows
from relaxc.schedules.ir import tir
from relaxc.schedules.template import Declined

__all__ = ["Groups", "match"]

_LINE = ("factor", "summand", "mean")
"""What a channel has: `(value - mean) * factor + summand`."""


@dataclass(frozen=True)
class Groups:
    """`out[n, p, c] = result(value * factor[n, c] + summand[n, c], n, p, c)` of a value of `x[n, p, c]`.

    `text` is as that of rows; it has `mean`, `factor` and `summand` besides, of the two sums of a group: that of the
    values, and that of the squares of what they are beside their mean. `result` has the line of each channel in the
    place of the sums. `FOLDED`: x is of 16 bits, and the mean in the summand, as x is less exact than that.
    """

    x: Any
    out: Any
    images: int
    pixels: int
    channels: int
    width: int
    text: str
    operands: tuple[Any, ...]
    sizes: tuple[Any, ...] = ()


def match(func: Any) -> Groups | Declined:
    """Return the groups that `func` reduces and writes, or why it does none that the kernel takes."""
    return rows.matched(func, lambda blocks: _Reader(func, blocks).read())


class _Reader(rows.Reader):
    """Reads the blocks of one PrimFunc: sums of groups become numbers, all else is inlined."""

    is_exact = True
    results = (*LOW, "float32")

    def read(self) -> Any:
        """Return the whole function. Raise Unsupported."""
        if len(self.shape) != 4:
            raise Unsupported("its result is no image")
        images, height, across, channels = self.shape
        groups = {tuple(int(dim) for dim in block.body.buffer.shape) for block in self.reductions}
        if len(groups) != 1 or len(found := groups.pop()) != 2 or found[0] != images or channels % found[1]:
            raise Unsupported("its sums are not of groups of channels of images")
        self.width = channels // found[1]
        if self.width % 2 or channels % 8:
            raise Unsupported("its groups are not of pairs of channels, or its channels in no multiple of 8")
        if len(self.reductions) != 2 or not self._is_centred(*self.reductions):
            raise Unsupported("its sums are not of a value, and of squares beside its mean")
        self.line = {name: tirx.Var(name, "float32") for name in _LINE}
        self.line_of: dict[str, Any] = {}
        self.is_result = self.folded = False
        text = self._text()
        return Groups(
            self.x, self.out, images, height * across, channels, self.width,
            f"constexpr bool FOLDED = {str(self.folded).lower()};\n{text}", tuple(self.operands),
        )  # fmt: skip

    def _more(self) -> list[str]:
        """The functions `mean`, `factor` and `summand`."""
        if not self.line_of:
            raise Unsupported("its result is not made of a value by a factor and a summand of its channel")
        return [self._function(name, self.line_of[name], fast=False) for name in _LINE]

    def _function(self, name: str, value: Any, *, fast: bool, known: int | None = None) -> str:
        self.is_result = name == "result"
        return super()._function(name, value, fast=fast, known=known)

    def _index(self, known: int | None) -> dict[Any, Pair]:
        if not self.is_result:
            return super()._index(known)
        found = super()._index(0)  # without sums: the line of each channel is in their place
        places = ("", "VECTOR + ", "2 * VECTOR + ")
        return found | {
            self.line[name]: Pair(f"s[{at}i]", f"s[{at}i + 1]") for name, at in zip(_LINE, places, strict=True)
        }

    def _value(self, block: Any, indices: Any) -> Any:
        """What a block stores; a norm is a value by the factor and the summand of its channel."""
        value = super()._value(block, indices)
        if (parts := _norm_of(value)) is None or not self._is_mean(parts[1]):
            return value
        x, mean, factor, summand = parts
        sums = [each.body.buffer for each in self.reductions]
        others = [load for load in tir.loads(factor) if not any(load.source.same_as(buffer) for buffer in sums)]
        if tir.uses([*tir.loads(summand), *others], self.axes[:3]):
            return value
        self.line_of = {"factor": factor, "summand": summand, "mean": mean}
        self.folded = isinstance(x, tirx.Cast) and str(x.value.ty.dtype) in LOW
        return (x if self.folded else x - self.line["mean"]) * self.line["factor"] + self.line["summand"]

    def _is_centred(self, sums: Any, squares: Any) -> bool:
        """Whether a reduction adds up `(value - sum * 1 / count) ** 2` of the value that another one adds up."""
        terms = [each.body.value for each in (sums, squares)]
        if not all(isinstance(term, tirx.Add) for term in terms):
            return False
        value, square = (
            tir.substitute(term.b, self._places(each)) for term, each in zip(terms, (sums, squares), strict=True)
        )
        if not (isinstance(square, tirx.Mul) and tir.same(square.a, square.b) and isinstance(square.a, tirx.Sub)):
            return False
        return tir.same(square.a.a, value) and self._is_mean(square.a.b)

    def _is_mean(self, mean: Any) -> bool:
        """Whether it is the first sum by the number of its values."""
        if not (isinstance(mean, tirx.Mul) and isinstance(mean.a, TensorLoad) and isinstance(mean.b, tirx.FloatImm)):
            return False
        count = self.shape[1] * self.shape[2] * self.width
        is_share = isclose(float(mean.b.value) * count, 1, rel_tol=1e-6)
        return is_share and bool(mean.a.source.same_as(self.reductions[0].body.buffer))

    def _group(self) -> Any:
        return tirx.floordiv(self.column, self.width)

    def _places(self, block: Any) -> dict[Any, Any]:
        reduced = [iv for iv in block.iter_vars if int(iv.iter_type) == 2]
        kept = [iv for iv in block.iter_vars if int(iv.iter_type) != 2]
        sizes = [[tir.as_int(iv.dom.extent) for iv in each] for each in (kept, reduced)]
        wanted = [[self.shape[0], self.shape[3] // self.width], [*self.shape[1:3], self.width]]
        if sizes != wanted:
            raise Unsupported("it does not reduce groups of channels")
        if not all(map(tir.same_var, block.body.indices, [iv.var for iv in kept])):
            raise Unsupported("its sums are stored elsewhere than at their groups")
        (n, g), (y, x, c) = ([iv.var for iv in each] for each in (kept, reduced))
        first = self._group() * self.width
        return {n: self.axes[0], g: self._group(), y: self.axes[1], x: self.axes[2], c: self.column - first}

    def _of_sums(self) -> list[Any]:
        sizes = (self.shape[0], self.shape[3] // self.width)
        return [at for at, size in zip((self.axes[0], self._group()), sizes, strict=True) if size != 1]


def _norm_of(value: Any) -> tuple[Any, Any, Any, Any] | None:
    """(x, mean, factor, summand) of `(x - mean) * deviation * gamma + beta`."""
    product = value.a if isinstance(value, tirx.Add) else None
    if not (isinstance(product, tirx.Mul) and isinstance(product.a, tirx.Mul) and isinstance(product.a.a, tirx.Sub)):
        return None
    centred, deviation = product.a.a, product.a.b
    return centred.a, centred.b, deviation * product.b, value.b
