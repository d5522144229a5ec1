"""Reductions over rows and what is made of them, read from a PrimFunc and written as CUDA text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.cuda.common.expression import BYTES, C_TYPES, LOW, Pair, Unsupported, Writer, operands_text
from relaxc.schedules.cuda.common.sizes import buffers_of, known_or, symbols_of
from relaxc.schedules.ir import positions, tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.ir.types import Buffer, Expr, IterVar, PrimFunc, SBlock, Size, Var
from relaxc.schedules.template import Declined

__all__ = ["Reader", "Rows", "match", "matched"]

Form = TypeVar("Form")

_FLOATS = (*LOW, "float32")
_MOST_ELEMENTS = 1 << 31
_PARAMETERS = (
    "float2 sums, const float* s, int m, int n, const Operands& operands, const Across& across, const Here& here, int i"
)
"""Of `term` and `result`: the elements of the row, its sums before, its place, and where in a vector that is."""


@dataclass(frozen=True)
class Rows:
    """`out[r, c] = result(x[r, c], sums[r, :], c)`; `text` has Operands, and a `term` for each sum, and `result`.

    `across` of the operands are vectors that all rows read alike, and `here` are read where the result is written:
    their number. Not `whole`: the result has one value of each row, `out[r] = result(sums[r, :])`. The rows may be
    known at the call alone: `sizes` are what Operands has behind the pointers then, the rows first.
    """

    x: Buffer
    out: Buffer
    rows: Size
    columns: int
    sums: int
    text: str
    operands: tuple[Buffer, ...]
    across: int
    here: int
    whole: bool
    sizes: tuple[Expr, ...] = ()


def match(func: PrimFunc) -> Rows | Declined:
    """Return the rows that `func` reduces and writes, or why it does none that the kernel takes."""
    return matched(func, lambda blocks: Reader(func, blocks).read(), at_call=True)


def matched(func: PrimFunc, read: Callable[[Sequence[SBlock]], Form], *, at_call: bool = False) -> Form | Declined:
    """Return what `read` finds in the blocks of `func`, or why nothing; `at_call`: sizes may be known there alone."""
    blocks = [realize.block for realize in block_realizes(func)]
    if not any(block.init is not None for block in blocks):
        return Declined("it reduces nothing")
    if not at_call and symbols_of(func):
        return Declined("its sizes are symbolic")
    counts = [tir.as_int(tir.product(list(p.shape))) for p in buffers_of(func)]
    if any(count is not None and count >= _MOST_ELEMENTS for count in counts):
        return Declined("an operand has 2^31 elements or more")
    try:
        return read(blocks)
    except Unsupported as error:
        return Declined(str(error))


class Reader:
    """Reads the blocks of one PrimFunc: sums of rows become numbers, all else is inlined."""

    is_exact = False
    results: tuple[str, ...] = (*_FLOATS, *BYTES)
    """The dtypes that the kernel stores."""

    def __init__(self, func: PrimFunc, blocks: Sequence[SBlock]) -> None:
        if not all(isinstance(block.body, tirx.BufferStore) for block in blocks):
            raise Unsupported("its blocks are not one store each")
        self.stores = {block.body.buffer: block for block in blocks}
        outputs = [buffer for buffer in buffers_of(func) if buffer in self.stores]
        if len(outputs) != 1 or len(self.stores) != len(blocks):
            raise Unsupported(f"it writes {len(outputs)} results, not one")
        self.out = outputs[0]
        self.reductions = [block for block in blocks if block.init is not None]
        self.whole = not self._gives_sums()
        self.shape = [known_or(dim) for dim in self.out.shape] if self.whole else self._shape_of_rows()
        if not self.shape or not isinstance(self.shape[-1], int):
            raise Unsupported("its result has no rows of known length")
        if str(self.out.dtype) not in (self.results if self.whole else _FLOATS):
            raise Unsupported("its result is not made of the row and its sums")
        self.axes = [tirx.Var(f"a{i}", "int64") for i in range(len(self.shape))]
        self.column = self.axes[-1]
        self.bounds = dict(zip(self.axes, self.shape, strict=True))
        self.symbols = symbols_of(func)
        self.place = tir.flatten(self.axes, self.shape)
        self.sums = [tirx.Var(f"sum{i}", "float32") for i in range(len(self.reductions))]
        self.x: Buffer | None = None
        self.operands: list[Buffer] = []
        self.across: list[int] = []
        self.here: list[int] = []

    def read(self) -> Rows:
        """Return the whole function. Raise Unsupported."""
        text = self._text()
        rows, columns = tir.product(self.shape[:-1]), self.shape[-1]
        if not isinstance(columns, int) or columns % 8:
            raise Unsupported("its rows are not in multiples of 8 elements")
        if not self.whole and rows == 1:
            raise Unsupported("it reduces one row")
        pieces = len(self.across), len(self.here)
        sizes = (rows, *self.symbols) if self.symbols else ()
        return Rows(
            self.x, self.out, rows, columns, len(self.sums), text, tuple(self.operands), *pieces, self.whole, sizes
        )

    def _gives_sums(self) -> bool:
        """Whether the result has one element for each of the first sum's."""
        sums = self.reductions[0].body.buffer
        return tir.same_size(tir.product(list(sums.shape)), tir.product(list(self.out.shape)))

    def _shape_of_rows(self) -> list[Size]:
        """The rows' axes of a result of one value each, and how long they are."""
        reduced = [iv for iv in self.reductions[0].iter_vars if int(iv.iter_type) == 2]
        kept = [known_or(dim) for dim in self.out.shape]
        kept = kept[:-1] if kept and tir.as_int(kept[-1]) == 1 else kept
        return [*kept, known_or(reduced[0].dom.extent)]

    def _text(self) -> str:
        """What the kernel is made of: the operands, a `term` and a `start` for each sum, and `result`."""
        made = self._result()
        fast = str(self.out.dtype) in LOW
        if isinstance(made, tirx.Cast) and fast and str(made.value.ty.dtype) == "float32":
            made = made.value  # the store rounds
        first = self.reductions[0]
        self.x = self._first_input(tir.substitute(first.body.value.b, self._places(first)), made)
        parts = [self._term(i, block) for i, block in enumerate(self.reductions)]
        if not self.whole and len(self.operands) > len(self.here):
            raise Unsupported("it reduces a product with a vector")
        parts += [self._function("result", made, fast=fast), *self._more()]
        kinds = ", ".join(str(_is_maximum(block)).lower() for block in self.reductions)
        calls = "".join(f"  f(Which<{i}>());\n" for i in range(len(self.sums)))
        text = (
            f"constexpr int SUMS = {len(self.sums)};\nconstexpr bool MAXIMA[SUMS] = {{{kinds}}};\n"
            "template <int N> struct Which { static constexpr int value = N; };\n"
            f"template <class F> DEV void each_sum(F f) {{\n{calls}}}\n"
            "template <int N> DEV float start();\n"
        )
        sizes = ("rows", *self._size_texts()) if self.symbols else ()
        text += operands_text(self.operands, sizes) + self._pieces()
        return text + f"template <int N> DEV float2 term({_PARAMETERS});\n" + "".join(parts)

    def _result(self) -> Expr:
        """What the kernel stores, where it stores it."""
        block = self.stores[self.out]
        if block.init is not None:
            return self._sum(block)
        if self.whole:
            return self._value(block, self.axes)
        rows = self.axes[:-1]
        made = self._value(block, [*rows, *[tirx.const(0, "int64")] * (len(self.out.shape) - len(rows))])
        if tir.uses(made, [self.column]):
            raise Unsupported("its result is not made of the row and its sums")
        return made

    def _sum(self, block: SBlock) -> Expr:
        """The variable of a reduction, in the dtype that it has in the function."""
        at = next(i for i, other in enumerate(self.reductions) if other.same_as(block))
        dtype = str(block.body.buffer.dtype)
        return self.sums[at] if dtype == "float32" else tirx.Cast(dtype, self.sums[at])

    def _more(self) -> list[str]:
        """Functions beside those."""
        return []

    def _pieces(self) -> str:
        """The structs Across and Here, how each is fetched, and `warm`, which brings vectors near before they are read.

        What an earlier kernel writes may be brought into L2 before it is written: writes go there.
        """
        text = ""
        for name, numbers in (("Across", self.across), ("Here", self.here)):
            fields = "".join(f"  float p{i}[VECTOR];\n" for i in numbers)
            loads = "".join(
                f"  load_vector<VECTOR>(to.p{i}, (const {self._type(i)}*)operands.p{i} + at);\n" for i in numbers
            )
            text += f"struct {name} {{\n{fields}}};\n"
            text += f"DEV void fetch({name}& to, long long at, const Operands& operands) {{\n{loads}}}\n"
        lines = "".join(
            f"  for (int at = threadIdx.x * 128; at < {self.shape[-1]} * (int)sizeof({self._type(i)}); "
            f"at += blockDim.x * 128) prefetch((const char*)operands.p{i} + at);\n"
            for i in self.across
        )
        return f"{text}DEV void warm(const Operands& operands) {{\n{lines}}}\n"

    def _type(self, number: int) -> str:
        return C_TYPES[str(self.operands[number].dtype)]

    def _held(self, buffer: Buffer, number: int, at: Expr) -> Pair | None:
        """The text of an operand that is fetched by vectors: one value for each column, or one for each result."""
        if str(buffer.dtype) not in _FLOATS:
            return None
        for name, numbers, place in (("across", self.across, self.column), ("here", self.here, self.place)):
            if tir.as_int(positions.simplify(at - place, self.bounds)) == 0:
                numbers += [] if number in numbers else [number]
                return Pair(f"{name}.p{number}[i]", f"{name}.p{number}[i + 1]")
        return None

    def _term(self, at: int, block: SBlock) -> str:
        """The functions `term` and `start` of a reduction."""
        update = block.body.value
        own = isinstance(update.a, TensorLoad) and update.a.source.same_as(block.body.buffer)
        if not own:
            raise Unsupported("it does not reduce rows")
        values = self._places(block)
        if str(block.body.buffer.dtype) not in (_FLOATS if _is_maximum(block) else ("float32",)):
            raise Unsupported("its sums are not of fp32")
        term = tir.substitute(update.b, values)
        start = f"template <> DEV float start<{at}>() {{ return {_number(float(block.init.value.value))}; }}\n"
        return start + self._function(f"term<{at}>", term, fast=str(self.out.dtype) in LOW, known=at)

    def _places(self, block: SBlock) -> dict[Var, Expr]:
        """Where each variable of a reduction is in the result."""
        reduced = [iv for iv in block.iter_vars if int(iv.iter_type) == 2]
        kept = [iv for iv in block.iter_vars if int(iv.iter_type) != 2]
        if len(reduced) != 1 or tir.as_int(reduced[0].dom.extent) != self.shape[-1]:
            raise Unsupported("it does not reduce rows")
        return {reduced[0].var: self.column, **self._kept(block, kept)}

    def _kept(self, block: SBlock, kept: Sequence[IterVar]) -> dict[Var, Expr]:
        """The rows' axes of a reduction: those of the result in order; axes of one element may be left out."""
        every = zip(self.axes[:-1], self.shape[:-1], strict=True)
        wanted = [(axis, size) for axis, size in every if tir.as_int(size) != 1]
        given = [iv for iv in kept if tir.as_int(iv.dom.extent) != 1]
        sizes = [size for _, size in wanted]
        if len(given) != len(sizes) or not all(map(tir.same_size, [iv.dom.extent for iv in given], sizes)):
            raise Unsupported("its sums are not of the rows that it writes")
        places = _not_one(block.body.indices, block.body.buffer.shape)
        if len(places) != len(given) or not all(map(tir.same_var, places, [iv.var for iv in given])):
            raise Unsupported("its sums are stored elsewhere than at their rows")
        found = {iv.var: axis for iv, (axis, _) in zip(given, wanted, strict=True)}
        return found | {iv.var: tir.zero(iv.var) for iv in kept if tir.as_int(iv.dom.extent) == 1}

    def _function(self, name: str, value: Expr, *, fast: bool, known: int | None = None) -> str:
        writer = Writer(
            self._index(known), self.column, self._behind, self._is_x, fast=fast,
            places=[(self.place, self.bounds, self._place_text())], held=self._held, is_exact=self.is_exact,
        )  # fmt: skip
        writer.operands = self.operands
        head = "template <> " if "<" in name else ""
        return writer.function(f"{head}DEV float2 {name}({_PARAMETERS})", value)

    def _index(self, known: int | None) -> dict[Var, Pair]:
        found: dict[Var, Pair] = {self.column: Pair("n", "(n + 1)")}
        found |= {var: Pair(text, text) for var, text in zip(self.symbols, self._size_texts(), strict=True)}
        stride, wide = "1", "(long long)" if self.symbols else ""
        for axis, size in reversed(list(zip(self.axes[:-1], self.shape[:-1], strict=True))):
            extent = str(size) if isinstance(size, int) else f"({self._size_text(size)})"
            found[axis] = Pair(
                *(f"({wide}(m / (int){stride} % (int){extent}))" if wide else f"(m / {stride} % {extent})",) * 2
            )
            stride = str(int(stride) * size) if stride.isdigit() and isinstance(size, int) else f"({stride} * {extent})"
        for i, var in enumerate(self.sums[:known]):
            found[var] = Pair(f"s[{i}]", f"s[{i}]")
        return found

    def _size_texts(self) -> list[str]:
        return [f"operands.s{i}" for i in range(len(self.symbols))]

    def _size_text(self, size: Expr) -> str:
        """The text of a size, which is a product of symbols and numbers."""
        if isinstance(size, tirx.Mul):
            return f"{self._size_text(size.a)} * {self._size_text(size.b)}"
        for var, text in zip(self.symbols, self._size_texts(), strict=True):
            if var.same_as(size):
                return text
        if (known := tir.as_int(size)) is None:
            raise Unsupported("its rows are computed from sizes")
        return str(known)

    def _place_text(self) -> Pair:
        return Pair(f"((long long)m * {self.shape[-1]} + n)", f"((long long)m * {self.shape[-1]} + n + 1)")

    def _behind(self, load: TensorLoad) -> Expr | None:
        block = self.stores.get(load.source)
        if block is None:
            return None
        if block.init is None:
            return self._value(block, load.indices)
        for index, own in zip(_not_one(load.indices, load.source.shape), self._of_sums(), strict=True):
            if tir.as_int(positions.simplify(index - own, self.bounds)) != 0:
                raise Unsupported("it reads sums of other rows than its own")
        return self._sum(block)

    def _of_sums(self) -> list[Expr]:
        """Where the sums of an element are stored, without axes of one element."""
        every = zip(self.axes[:-1], self.shape[:-1], strict=True)
        return [axis for axis, size in every if tir.as_int(size) != 1]

    def _is_x(self, load: TensorLoad) -> bool:
        return self.x is not None and load.source.same_as(self.x) and self._is_here(load)

    def _is_here(self, load: TensorLoad) -> bool:
        """Whether an operand is read at the place that is written."""
        if not tir.same_size(tir.product(list(load.source.shape)), tir.product(self.shape)):
            return False
        at = tir.flatten(list(load.indices), list(load.source.shape))
        return tir.as_int(positions.simplify(at - self.place, self.bounds)) == 0

    def _first_input(self, *values: Expr) -> Buffer:
        """The operand of the result's shape that is read at the place that is written, the first in `values`."""
        pending, seen = list(values), 0
        while pending and seen < 64:
            seen += 1
            for load in tir.loads(pending.pop(0)):
                block = self.stores.get(load.source)
                if block is None and str(load.source.dtype) in _FLOATS and self._is_here(load):
                    return load.source
                if block is not None and block.init is None:
                    pending.append(self._value(block, load.indices))
        raise Unsupported("it has no operand of the shape of its result")

    def _value(self, block: SBlock, indices: Sequence[Expr]) -> Expr:
        values: dict[Var, Expr] = {}
        for index, wanted in zip(block.body.indices, indices, strict=True):
            if isinstance(index, tirx.Var):
                values[index] = wanted
            elif tir.as_int(index) != tir.as_int(positions.simplify(wanted, self.bounds)):
                raise Unsupported("it does not write at plain indices")
        return tir.substitute(block.body.value, values)


def _not_one(indices: Sequence[Expr], shape: Sequence[Size]) -> list[Expr]:
    return [index for index, size in zip(indices, shape, strict=True) if tir.as_int(size) != 1]


def _is_maximum(block: SBlock) -> bool:
    if isinstance(block.body.value, tirx.Max):
        return True
    if isinstance(block.body.value, tirx.Add):
        return False
    raise Unsupported("it is no sum and no maximum")


def _number(value: float) -> str:
    return f"{value!r}f" if abs(value) < float("inf") else ("INFINITY" if value > 0 else "-INFINITY")
