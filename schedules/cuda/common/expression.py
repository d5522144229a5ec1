"""Elementwise TIR as CUDA text: what a kernel does with its sums before it stores them, two neighbours at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan

from tvm import tirx
from tvm.ir import Call, TensorLoad

from relaxc.schedules.cuda.common.gelu import tanh_gelu
from relaxc.schedules.cuda.common.integers import ARITHMETIC, wrapping
from relaxc.schedules.cuda.common.quantization import BYTES, Quantization, is_within, quantization_of
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.ir.types import Buffer, Expr, Size, Var

__all__ = ["BYTES", "C_TYPES", "FP8", "LOW", "SHORT", "Pair", "Unsupported", "Writer"]

LOW = ("float16", "bfloat16")
FP8 = "float8_e4m3fn"
C_TYPES = {
    "float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16", "bool": "bool", "int8": "signed char",
    "uint8": "unsigned char", "int32": "int", "int64": "long long", FP8: "hopper::Fp8",
}  # fmt: skip
SHORT = (*LOW, FP8)
"""Floats that are held as fp32, and rounded."""
_FLOATS = ("float32", *SHORT)
_INFIX: dict[type, str] = {
    tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.LT: "<", tirx.LE: "<=", tirx.GT: ">", tirx.GE: ">=",
    tirx.EQ: "==", tirx.NE: "!=", tirx.And: "&&", tirx.Or: "||",
}  # fmt: skip
_EXACT = {
    "tirx.exp": "expf", "tirx.tanh": "tanhf", "tirx.erf": "erff", "tirx.sqrt": "sqrtf", "tirx.rsqrt": "rsqrtf",
    "tirx.fabs": "fabsf", "tirx.log": "logf", "tirx.sigmoid": "sigmoid_exact", "tirx.pow": "powf",
    "tirx.floor": "floorf", "tirx.ceil": "ceilf", "tirx.nearbyint": "rintf",
}  # fmt: skip
_CHEAP = ("tirx.fabs", "tirx.floor", "tirx.ceil", "tirx.nearbyint")
# Off by less than 1e-6, which a result of 16 bits does not show, nor one in steps of a quantization.
_FAST = {"tirx.exp": "exp_fast", "tirx.tanh": "tanh_fast", "tirx.erf": "erf_fast", "tirx.sigmoid": "sigmoid_fast"}


class Unsupported(Exception):
    """What an expression has that the text cannot say; the template declines with it."""


@dataclass(frozen=True)
class Pair:
    """The text of a value for each of two neighbouring columns."""

    x: str
    y: str


class Writer:
    """Writes expressions for two columns, `n` and `n + 1`, of one row; statements come before what uses them.

    `index` gives the text of an integer variable in each column. `inner` gives the expression behind a load of an
    intermediate value, or None where the buffer is an operand of the kernel; `is_sum` tells a load of the sums, which
    are `sums.x` and `sums.y`. `fast`: functions that are off by up to 1e-6 will do. `places` has positions that have a
    text of their own: an expression, the extents of its variables, and the text. `brought` are statements that have the
    operands' elements from column `n` on come into L2, of operands that lie there in one piece.
    Without `pairs`, nothing is read by twos: the last column may have no neighbour. `held` gives the text of what the
    kernel has of an operand already, by the operand, its number, and the position. `is_exact`: the sums are values of
    their buffer's dtype, so that they need not be rounded to it, which takes as long as an exponential.
    """

    def __init__(
        self,
        index: Mapping[Var, Pair],
        column: Var,
        inner: Callable[[TensorLoad], Expr | None],
        is_sum: Callable[[TensorLoad], bool],
        *,
        fast: bool,
        places: Sequence[tuple[Expr, Mapping[Var, Size], Pair]] = (),
        pairs: bool = True,
        held: Callable[[Buffer, int, Expr], Pair | None] = lambda buffer, number, at: None,
        is_exact: bool = False,
    ) -> None:
        self.statements: list[str] = []
        self.operands: list[Buffer] = []
        self.brought: list[str] = []
        self.expensive = False
        self._index = index
        self._column = column
        self._inner = inner
        self._is_sum = is_sum
        self._places = places
        self._fast = fast
        self._calls = {**_EXACT, **_FAST} if fast else _EXACT
        self._pairs = pairs
        self._held = held
        self._is_exact = is_exact
        self._done: list[tuple[Buffer, list[Expr], Pair]] = []

    def write(self, expr: Expr) -> Pair:
        """Return the text of `expr`. Raise Unsupported."""
        if isinstance(expr, TensorLoad):
            return self._load(expr)
        return Pair(self._text(expr, lambda pair: pair.x), self._text(expr, lambda pair: pair.y))

    def function(self, signature: str, expr: Expr, pair: str = "float2") -> str:
        """Return the text of a function of this signature that gives `expr` as a `pair`; the writer's first.

        Raise Unsupported.
        """
        result = self.write(expr)
        body = "".join(f"  {line}\n" for line in self.statements)
        return f"{signature} {{\n{body}  return make_{pair}({result.x}, {result.y});\n}}\n"

    def _text(self, expr: Expr, side: Callable[[Pair], str]) -> str:
        if isinstance(expr, TensorLoad):
            return side(self._load(expr))
        if isinstance(expr, tirx.Var):
            if expr not in self._index:
                raise Unsupported(f"it uses the variable {expr.name}")
            return side(self._index[expr])
        if isinstance(expr, tirx.FloatImm | tirx.IntImm):
            return _constant(expr)
        if isinstance(expr, tirx.Cast):
            return self._cast(expr, side)
        text, dtype = self._operation(expr, side), str(expr.ty.dtype)
        return f"({C_TYPES[dtype]}){text}" if dtype in BYTES else _rounded(text, dtype)  # C computes with bytes as ints

    def _operation(self, expr: Expr, side: Callable[[Pair], str]) -> str:
        kind = type(expr)
        if kind is tirx.Mul and self._fast and (x := tanh_gelu(expr, self._inner)) is not None:
            self.expensive = True
            return f"gelu_fast({self._text(x, side)})"
        if kind in _INFIX:
            a, b = self._text(expr.a, side), self._text(expr.b, side)
            wraps = kind in ARITHMETIC and tir.loads(expr)  # of data; what C has of positions is faster
            return wrapping(str(expr.ty.dtype), a, _INFIX[kind], b) if wraps else f"({a} {_INFIX[kind]} {b})"
        if kind is tirx.Not:
            return f"(!{self._text(expr.a, side)})"
        of_floats = is_float(str(expr.ty.dtype))
        if kind is tirx.Div and of_floats:
            return f"({self._text(expr.a, side)} / {self._text(expr.b, side)})"
        if kind in (tirx.FloorDiv, tirx.FloorMod) and not of_floats:
            a, b = self._text(expr.a, side), self._text(expr.b, side)
            if not tir.loads(expr):  # positions are not negative
                return f"({a} {'/' if kind is tirx.FloorDiv else '%'} {b})"
            name = "floor_div" if kind is tirx.FloorDiv else "floor_mod"
            return f"{name}<{C_TYPES[str(expr.ty.dtype)]}>({a}, {b})"
        if kind in (tirx.Max, tirx.Min):
            a, b = self._text(expr.a, side), self._text(expr.b, side)
            if str(expr.ty.dtype) == "int64":
                a, b = f"(long long)({a})", f"(long long)({b})"
            name = "max" if kind is tirx.Max else "min"
            return f"relaxc_{name}({a}, {b})" if of_floats else f"{name}({a}, {b})"
        if kind is tirx.Select:
            condition, yes, no = (self._text(e, side) for e in (expr.condition, expr.true_value, expr.false_value))
            return f"({condition} ? {yes} : {no})"
        if tir.is_if_then_else(expr):
            # What is loaded is loaded before the expression, whatever the condition says.
            if any(not self._is_sum(load) for branch in expr.args[1:] for load in tir.loads(branch)):
                raise Unsupported("it reads an operand where a condition allows it")
            condition, yes, no = (self._text(e, side) for e in expr.args)
            return f"({condition} ? {yes} : {no})"
        name = str(getattr(expr.op, "name", "")) if isinstance(expr, Call) else ""
        if name in self._calls and of_floats:
            self.expensive = self.expensive or name not in _CHEAP
            return f"{self._calls[name]}({', '.join(self._text(arg, side) for arg in expr.args)})"
        raise Unsupported(f"its epilogue has {name or kind.__name__}")

    def _cast(self, expr: Expr, side: Callable[[Pair], str]) -> str:
        to, source = str(expr.ty.dtype), str(expr.value.ty.dtype)
        if to not in C_TYPES or source not in C_TYPES:
            raise Unsupported(f"its epilogue casts {source} to {to}")
        is_float = to in _FLOATS
        if source in _FLOATS:
            if to in BYTES and is_within(expr.value, to):
                made = self._quantization(expr.value, to)
                return self._call_of("quantized", made, side) if made else self._clamped(expr.value, side)
            if not is_float:
                raise Unsupported(f"its epilogue casts {source} to {to}")
            value = self._text(expr.value, side)
            return _rounded(value, to) if to != source else value
        if is_float and (steps := self._steps(expr.value, side)):
            return _rounded(steps, to)
        value = self._text(expr.value, side)
        return _rounded(f"(float)({value})", to) if is_float else f"({C_TYPES[to]})({value})"

    def _clamped(self, expr: Expr, side: Callable[[Pair], str]) -> str:
        """Text for what `is_within` the range of bytes, as an integer: the lowest for NaN."""
        value, low, high = (self._text(each, side) for each in (expr.a.a, expr.a.b, expr.b))
        return f"((int)(fminf(fmaxf({value}, {low}), {high})))"

    def _steps(self, expr: Expr, side: Callable[[Pair], str]) -> str:
        """Text for a byte less a zero point, as a float: what a dequantization multiplies; '' for others."""
        if not isinstance(expr, tirx.Sub) or not all(isinstance(each, tirx.Cast) for each in (expr.a, expr.b)):
            return ""
        byte, zero = expr.a.value, expr.b.value
        if str(byte.ty.dtype) not in BYTES or str(zero.ty.dtype) != str(byte.ty.dtype):
            return ""
        if tir.uses(zero, [self._column]):
            return ""
        behind = self._inner(byte) if isinstance(byte, TensorLoad) and not self._is_sum(byte) else byte
        made = self._quantization(behind.value, str(byte.ty.dtype)) if isinstance(behind, tirx.Cast) else None
        if made is not None and tir.same(made.zero, zero):
            return self._call_of("quantized_steps", made, side)
        return f"byte_less({self._text(byte, side)}, {self._text(zero, side)})"

    def _quantization(self, expr: Expr, dtype: str) -> Quantization | None:
        """A quantization with one scale and zero point for all columns: what a divisor costs is paid once."""
        made = quantization_of(expr, dtype)
        if made is None or any(tir.uses(each, [self._column]) for each in (made.scale, made.zero) if each is not None):
            return None
        return made

    def _call_of(self, function: str, made: Quantization, side: Callable[[Pair], str]) -> str:
        self.expensive = True
        given = (made.value, made.scale, made.zero) if made.scale is not None else (made.value, made.zero)
        parts = [self._text(part, side) for part in given]
        return f"{function}({', '.join(parts)}, {made.low}, {made.high})"

    def _load(self, load: TensorLoad) -> Pair:
        indices = [tir.simplify(index) for index in load.indices]
        for buffer, others, pair in self._done:
            if buffer.same_as(load.source) and all(map(tir.same, others, indices)):
                return pair
        pair = self._load_new(load)
        self._done.append((load.source, indices, pair))
        return pair

    def _load_new(self, load: TensorLoad) -> Pair:
        buffer = load.source
        if self._is_sum(load):
            dtype = "float32" if self._is_exact else str(buffer.dtype)
            return Pair(_rounded("sums.x", dtype), _rounded("sums.y", dtype))
        behind = self._inner(load)
        name = f"v{len(self.statements)}"
        if behind is not None:
            value = self.write(behind)
            name = f"v{len(self.statements)}"
            kind = _held(str(buffer.dtype))
            self.statements.append(f"const {kind} {name}x = {value.x}, {name}y = {value.y};")
            return Pair(f"{name}x", f"{name}y")
        return self._operand(load, name)

    def _operand(self, load: TensorLoad, name: str) -> Pair:
        """A load from memory: of two neighbours at once where they are, once where both columns read the same."""
        buffer, dtype = load.source, str(load.source.dtype)
        if dtype not in C_TYPES:
            raise Unsupported(f"its epilogue reads {dtype}")
        known = tir.as_int(tir.product(list(buffer.shape)))
        if known is not None and known >= 1 << 31:
            raise Unsupported("its epilogue reads an operand of 2^31 elements or more")
        at = tir.simplify(tir.flatten(list(load.indices), list(buffer.shape)))
        number = self._number(buffer)
        if (found := self._held(buffer, number, at)) is not None:
            return found
        pointer = f"operands.p{number}"
        place = self._place(at)
        left, right = (place.x, place.y) if place else tuple(self._text(at, side) for side in (_left, _right))
        if place or tir.as_int(tir.simplify(at - self._column)) == 0:
            self.brought.append(f"bring<{C_TYPES[dtype]}>({pointer}, {left});")
        kind = _held(dtype)
        load_one = f"load<{C_TYPES[dtype]}>" if kind == "float" else f"load_as<{C_TYPES[dtype]}>"
        if not tir.uses(at, [self._column]):
            self.statements.append(f"const {kind} {name} = {load_one}({pointer}, {left});")
            return Pair(name, name)
        if self._pairs and self._is_even(at) and dtype not in ("bool", "int64"):
            load = "load_pair" if kind == "float" else "load_two"
            self.statements.append(f"const auto {name} = {load}<{C_TYPES[dtype]}>({pointer}, {left});")
            return Pair(f"{name}.x", f"{name}.y")
        self.statements.append(
            f"const {kind} {name}x = {load_one}({pointer}, {left}), {name}y = {load_one}({pointer}, {right});"
        )
        return Pair(f"{name}x", f"{name}y")

    def _place(self, at: Expr) -> Pair | None:
        for place, extents, text in self._places:
            if tir.as_int(tir.simplify(at - place, extents)) == 0:
                return text
        return None

    def _is_even(self, at: Expr) -> bool:
        """Whether `at` is the column, which is even, plus an even number."""
        rest = tir.simplify(at - self._column)
        return not tir.uses(rest, [self._column]) and tir.as_int(tir.simplify(tirx.floormod(rest, 2))) == 0

    def _number(self, buffer: Buffer) -> int:
        found = [i for i, other in enumerate(self.operands) if other.same_as(buffer)]
        if not found:
            self.operands.append(buffer)
            found = [len(self.operands) - 1]
        return found[0]


def _left(pair: Pair) -> str:
    return pair.x


def _right(pair: Pair) -> str:
    return pair.y


def _held(dtype: str) -> str:
    """The C type in which a value of `dtype` is held: short floats as float."""
    return "float" if dtype in _FLOATS else C_TYPES[dtype]


def _rounded(text: str, dtype: str) -> str:
    return f"rounded<{C_TYPES[dtype]}>({text})" if dtype in SHORT else text


def _constant(expr: Expr) -> str:
    value, dtype = expr.value, str(expr.ty.dtype)
    if dtype == "bool":
        return "true" if value else "false"
    if not dtype.startswith(("float", "bfloat")):
        return str(int(value)) if abs(int(value)) < 1 << 31 else f"{int(value)}LL"
    value = float(value)
    if isnan(value):
        return "NAN"
    if abs(value) == inf:
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"({value.hex()}f)"


def operands_text(buffers: Sequence[Buffer], sizes: Collection[str] = ()) -> str:
    """Return the struct that takes the pointers of the operands to the device function, and `sizes`, 64-bit numbers."""
    fields = "".join(f"  const void* p{i};\n" for i in range(len(buffers)))
    fields += "".join(f"  long long {name.removeprefix('operands.')};\n" for name in sizes)
    return f"struct Operands {{\n{fields}}};\n"
