"""Expressions as CUDA text: one value of one element, in the arithmetic of its dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isnan

from tvm import tirx
from tvm.ir import Call

from relaxc.schedules.cuda.common.expression import C_TYPES, SHORT, Unsupported
from relaxc.schedules.cuda.common.integers import ARITHMETIC, wrapping
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import is_condition, is_float
from relaxc.schedules.ir.types import Expr, Size, Var

__all__ = ["TYPES", "Values", "held"]

TYPES = {
    **C_TYPES, "int16": "short", "uint16": "unsigned short", "uint32": "unsigned int", "uint64": "unsigned long long",
    "float64": "double",
}  # fmt: skip
_FLOATS = ("float32", "float64", *SHORT)
_SMALL = ("int8", "uint8", "int16", "uint16")
_INFIX: dict[type, str] = {
    tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.LT: "<", tirx.LE: "<=", tirx.GT: ">", tirx.GE: ">=",
    tirx.EQ: "==", tirx.NE: "!=", tirx.And: "&&", tirx.Or: "||",
}  # fmt: skip
_BITS: dict[type, str] = {tirx.BitwiseAnd: "&", tirx.BitwiseOr: "|", tirx.BitwiseXor: "^"}
_BITWISE = {"tirx.bitwise_and": "&", "tirx.bitwise_or": "|", "tirx.bitwise_xor": "^"}
_FUNCTIONS = {
    "tirx.exp": "exp", "tirx.exp2": "exp2", "tirx.tanh": "tanh", "tirx.erf": "erf", "tirx.sqrt": "sqrt",
    "tirx.rsqrt": "rsqrt", "tirx.fabs": "fabs", "tirx.log": "log", "tirx.log2": "log2", "tirx.log1p": "log1p",
    "tirx.pow": "pow", "tirx.floor": "floor", "tirx.ceil": "ceil", "tirx.trunc": "trunc", "tirx.sin": "sin",
    "tirx.cos": "cos", "tirx.tan": "tan", "tirx.atan": "atan", "tirx.nearbyint": "nearbyint",
}  # fmt: skip
# Relative to what 16 bits show, these are exact; see elementwise.cuh.
_FAST = {"tirx.exp": "exp_fast", "tirx.tanh": "tanh_low", "tirx.erf": "erf_low", "tirx.sigmoid": "sigmoid_fast"}
_INT = 1 << 31


def held(dtype: str) -> str:
    """Return the C type in which a value of `dtype` is held: short floats as float. Raise Unsupported."""
    if dtype not in TYPES:
        raise Unsupported(f"it has values of {dtype}")
    return "float" if dtype in SHORT else TYPES[dtype]


class Values:
    """Writes expressions of axes, whose `bounds` are given, and of variables that `text_of` knows.

    Positions, which are made of axes alone, are 32-bit numbers; where they are made of `symbols` too, 64-bit ones.
    `fast`: what 16 bits do not show may be off.
    """

    def __init__(
        self, bounds: Mapping[Var, Size], text_of: Callable[[Var], str], *, fast: bool, symbols: Sequence[Var] = ()
    ) -> None:
        self._axes: set[Var] = {*bounds, *symbols}
        self._position = "long long" if symbols else "int"
        self._text_of = text_of
        self._fast = fast
        self._analyzer = tir.analyzer_of(bounds)

    def text(self, expr: Expr) -> str:
        """Return the text of `expr`, held as `held` says. Raise Unsupported."""
        dtype = str(expr.ty.dtype)
        text = self.unrounded(expr)
        if dtype in SHORT and not isinstance(expr, tirx.Var | tirx.Select):
            return f"rounded<{TYPES[dtype]}>({text})"
        if dtype in _SMALL and not isinstance(expr, tirx.Var | tirx.IntImm):
            return f"({TYPES[dtype]})({text})"
        return text

    def unrounded(self, expr: Expr) -> str:
        """Return the text of `expr`, with the last operation on short floats not yet rounded. Raise Unsupported."""
        dtype = str(expr.ty.dtype)
        held(dtype)
        if isinstance(expr, tirx.Var):
            return self._text_of(expr)
        if isinstance(expr, tirx.FloatImm | tirx.IntImm):
            return _constant(expr, dtype)
        if self._position == "int" and self._is_position(expr):
            self._bounded(expr)
        if isinstance(expr, tirx.Cast):
            return self._cast(expr.value, dtype)
        return self._operation(expr, dtype)

    def _is_position(self, expr: Expr) -> bool:
        if is_float(str(expr.ty.dtype)) or is_condition(str(expr.ty.dtype)):
            return False
        return all(var in self._axes for var in tir.variables(expr)) and not tir.collect(expr, (Call, tirx.Cast))

    def _bounded(self, expr: Expr) -> None:
        bound = self._analyzer.const_int_bound(expr)
        if bound.min_value <= -_INT or bound.max_value >= _INT:
            raise Unsupported("its positions need more than 32 bits")

    def _operand(self, expr: Expr, dtype: str) -> str:
        """An operand of an operation in `dtype`: a position is as wide as what it is combined with."""
        text = self.text(expr)
        return f"(long long)({text})" if dtype == "int64" and self._is_position(expr) else text

    def _operation(self, expr: Expr, dtype: str) -> str:
        kind = type(expr)
        if isinstance(expr, Call):
            return self._call(expr, dtype)
        if kind is tirx.Not:
            return f"(!{self.text(expr.a)})"
        if kind is tirx.Select:
            condition, yes, no = self.text(expr.condition), self._operand(expr.true_value, dtype), expr.false_value
            return f"({condition} ? {yes} : {self._operand(no, dtype)})"
        if not (hasattr(expr, "a") and hasattr(expr, "b")):
            raise Unsupported(f"it has {kind.__name__}")
        position = self._is_position(expr.a) and self._is_position(expr.b)
        of = str(expr.a.ty.dtype)
        a, b = ((self.text(e) if position else self._operand(e, of)) for e in (expr.a, expr.b))
        if kind in _BITS and dtype not in _FLOATS:
            return f"(({TYPES[dtype]})({a} {_BITS[kind]} {b}))"
        if kind in _INFIX:
            if kind in ARITHMETIC and is_condition(dtype):
                raise Unsupported("it computes with truth values")
            if kind in ARITHMETIC and not position:
                return wrapping(dtype, a, _INFIX[kind], b)
            return f"({a} {_INFIX[kind]} {b})"
        return self._two(expr, kind, a, b, self._position if position else held(dtype))

    def _two(self, expr: Expr, kind: type, a: str, b: str, c_type: str) -> str:
        of_floats = is_float(str(expr.ty.dtype))
        if kind is tirx.Div or (kind is tirx.Mod and not of_floats):
            return f"({a} {'/' if kind is tirx.Div else '%'} {b})"
        if kind in (tirx.FloorDiv, tirx.FloorMod) and not of_floats:
            if self._is_position(expr) and self._analyzer.const_int_bound(expr.a).min_value >= 0 and tir.as_int(expr.b):
                return f"({a} {'/' if kind is tirx.FloorDiv else '%'} {b})"
            name = "floor_div" if kind is tirx.FloorDiv else "floor_mod"
            return f"{name}<{c_type}>({a}, {b})"
        if kind in (tirx.Max, tirx.Min) and not is_condition(str(expr.ty.dtype)):
            name = "max" if kind is tirx.Max else "min"
            if of_floats:
                return f"relaxc_{name}({a}, {b})"
            return f"{name}_of<{c_type}>({a}, {b})"
        raise Unsupported(f"it has {kind.__name__}")

    def _call(self, expr: Call, dtype: str) -> str:
        name = str(getattr(expr.op, "name", ""))
        if name in _BITWISE and dtype not in _FLOATS:
            a, b = (self._operand(arg, dtype) for arg in expr.args)
            return f"(({TYPES[dtype]})({a} {_BITWISE[name]} {b}))"
        if name == "tirx.reinterpret" and dtype not in _FLOATS and str(expr.args[0].ty.dtype) not in _FLOATS:
            return f"(({TYPES[dtype]})({self._operand(expr.args[0], dtype)}))"  # where nothing has C draw conclusions
        if name == "tirx.reinterpret" and (dtype, str(expr.args[0].ty.dtype)) == ("int32", "float32"):
            return f"bits_of({self.text(expr.args[0])})"
        if name == "tirx.reinterpret" and dtype in _FLOATS and (number := _hidden(expr)) is not None:
            return self.text(number)
        if name.endswith("call_pure_extern") and dtype in ("float32", "float64"):  # of the C library, which CUDA has
            return f"{expr.args[0].value}({', '.join(self.text(arg) for arg in expr.args[1:])})"
        if name == "tirx.bitwise_not" and dtype in ("int32", "int64"):
            return f"(~{self._operand(expr.args[0], dtype)})"
        if dtype not in _FLOATS or any(str(arg.ty.dtype) != dtype for arg in expr.args):
            raise Unsupported(f"it has {name or 'a call'}")
        arguments = ", ".join(self.text(arg) for arg in expr.args)
        if name in _FAST and self._fast and dtype != "float64":
            return f"{_FAST[name]}({arguments})"
        if name == "tirx.sigmoid" and dtype != "float64":
            return f"sigmoid_exact({arguments})"
        if name not in _FUNCTIONS:
            raise Unsupported(f"it has {name or 'a call'}")
        return f"{_FUNCTIONS[name]}{'' if dtype == 'float64' else 'f'}({arguments})"

    def _bounded_text(self, value: Expr) -> str:
        """The text of a float that becomes an integer: its bounds give the lowest for NaN, as bytes have it."""
        dtype = str(value.ty.dtype)
        if not isinstance(value, tirx.Max | tirx.Min):
            return self.text(value)
        name = f"f{'max' if isinstance(value, tirx.Max) else 'min'}{'' if dtype == 'float64' else 'f'}"
        text = f"{name}({self._bounded_text(value.a)}, {self._bounded_text(value.b)})"
        return f"rounded<{TYPES[dtype]}>({text})" if dtype in SHORT else text

    def _cast(self, value: Expr, to: str) -> str:
        source = str(value.ty.dtype)
        becomes_integer = source in _FLOATS and to not in _FLOATS and to != "bool"
        text = self._bounded_text(value) if becomes_integer else self.text(value)
        if to == source:
            return text
        if to == "bool":
            return f"({text} != 0)"
        if to in SHORT:
            if source == "float64":
                raise Unsupported("it rounds float64 to 16 bits or fewer")
            return text if source in _FLOATS else f"(float)({text})"
        return f"({TYPES[to]})({text})"


def _hidden(call: Call) -> Expr | None:
    """The number whose bits a float has, as `tir.hidden` has them."""
    inner = call.args[0]
    same = isinstance(inner, Call) and inner.op.same_as(call.op) and inner.args[0].ty.dtype == call.ty.dtype
    return inner.args[0] if same else None


def _constant(expr: Expr, dtype: str) -> str:
    if dtype == "bool":
        return "true" if expr.value else "false"
    if dtype not in _FLOATS:
        return _integer(int(expr.value), dtype)
    value, suffix = float(expr.value), "" if dtype == "float64" else "f"
    if isnan(value):
        return "NAN"
    if abs(value) == inf:
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"({value.hex()}{suffix})"


def _integer(value: int, dtype: str) -> str:
    if dtype == "uint64":
        return f"{value % (1 << 64)}ULL"
    if dtype == "uint32":
        return f"{value % (1 << 32)}u"
    if -_INT < value < _INT:
        return str(value) if value >= 0 else f"({value})"
    if value == -(1 << 63):
        return "(-9223372036854775807LL - 1)"
    return f"({value}LL)"
