"""Arithmetic, comparison, logic and mathematical functions, element by element with broadcasting."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from relaxc.service.codes import CARRIER, FORMATS
from relaxc.service.frontend.onnx.codes import as_codes, of_codes
from relaxc.service.frontend.onnx.fold import cast_known
from relaxc.service.frontend.onnx.node import DTYPES, Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.codes import narrowed, widened
from relaxc.service.frontend.onnx.ops.common import (
    FLOAT8,
    aligned,
    cast,
    full_precision,
    is_float,
    is_integer,
    is_low_precision,
    scalar,
    through_float8,
)
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.values import Known, Undecided
from relaxc.service.frontend.reach import of_quotient, reach

_UNARY = {
    "Abs": relax.op.abs,
    "Acos": relax.op.acos,
    "Acosh": relax.op.acosh,
    "Asin": relax.op.asin,
    "Asinh": relax.op.asinh,
    "Atan": relax.op.atan,
    "Atanh": relax.op.atanh,
    "BitwiseNot": relax.op.bitwise_not,
    "Ceil": relax.op.ceil,
    "Cos": relax.op.cos,
    "Cosh": relax.op.cosh,
    "Exp": relax.op.exp,
    "Floor": relax.op.floor,
    "Log": relax.op.log,
    "Neg": relax.op.negative,
    "Not": relax.op.logical_not,
    "Sin": relax.op.sin,
    "Sinh": relax.op.sinh,
    "Sqrt": relax.op.sqrt,
    "Tan": relax.op.tan,
    "Tanh": relax.op.tanh,
}
_BINARY = {
    "Add": relax.op.add,
    "And": relax.op.logical_and,
    "BitwiseAnd": relax.op.bitwise_and,
    "BitwiseOr": relax.op.bitwise_or,
    "BitwiseXor": relax.op.bitwise_xor,
    "Equal": relax.op.equal,
    "Greater": relax.op.greater,
    "GreaterOrEqual": relax.op.greater_equal,
    "Less": relax.op.less,
    "LessOrEqual": relax.op.less_equal,
    "Mul": relax.op.multiply,
    "Or": relax.op.logical_or,
    "Sub": relax.op.subtract,
    "Xor": relax.op.logical_xor,
}
_VARIADIC = {"Max": relax.op.maximum, "Min": relax.op.minimum, "Sum": relax.op.add}


def _register_unary(name: str, function: Callable[..., Any]) -> None:
    op(name)(lambda node: function(node.tensor(0)))


def _register_binary(name: str, function: Callable[..., Any]) -> None:
    op(name)(lambda node: function(*aligned(node, node.tensor(0), node.tensor(1))))


@op("Erf")
def _erf(node: Node) -> Any:
    x = node.tensor(0)
    return full_precision(node, relax.op.erf, x) if is_integer(node.dtype(0)) else relax.op.erf(x)


for _name, _function in _UNARY.items():
    _register_unary(_name, _function)
for _name, _function in _BINARY.items():
    _register_binary(_name, _function)


@op(*_VARIADIC)
def _variadic(node: Node) -> Any:
    function = _VARIADIC[node.op]
    tensors = [node.tensor(index) for index in range(len(node.inputs))]
    return functools.reduce(lambda a, b: node.emit(function(*aligned(node, a, b))), tensors)


@op("Sign")
def _sign(node: Node) -> Any:
    """NaN has the sign NaN, as in numpy; in torch it has none, 0, as in Relax."""
    x, dtype = node.tensor(0), node.dtype(0)
    if dtype.startswith("uint"):
        return cast(node.emit(relax.op.not_equal(x, scalar(0, x))), dtype)
    if not is_float(dtype):
        return relax.op.sign(x)

    def sign(wide: Any) -> Any:
        return relax.op.where(node.emit(relax.op.isnan(wide)), wide, node.emit(relax.op.sign(wide)))

    return full_precision(node, sign, x)


@op("Mean")
def _mean(node: Node) -> Any:
    tensors = [node.tensor(index) for index in range(len(node.inputs))]
    total = functools.reduce(lambda a, b: node.emit(relax.op.add(*aligned(node, a, b))), tensors)
    return relax.op.divide(total, scalar(len(tensors), total))


@op("Div")
def _divide(node: Node) -> Any:
    """Integers divide towards zero. The least by -1 wraps to itself; a divisor of 0, which ONNX leaves open, is 1."""
    left, right = aligned(node, node.tensor(0), node.tensor(1))
    if not is_integer(dtype_of(left)):
        return relax.op.divide(left, right)
    made = node.te(lambda a, b: _broadcast(a, b, lambda x, y: tirx.truncdiv(x, _divisor(x, y))), left, right)
    found = of_quotient(*(reach(each, node.builder.lookup_binding, node.scope.ranges) for each in (left, right)))
    if found is not None and isinstance(found[0], int) and found[0] >= 0:
        node.scope.ranges[made] = found
    return made


@op("Mod")
def _modulo(node: Node) -> Any:
    """`fmod=0`: the sign of the divisor, as numpy has it; `fmod=1`: that of the dividend, as C's fmod."""
    left, right = aligned(node, node.tensor(0), node.tensor(1))
    dtype = dtype_of(left)
    if is_float(dtype):
        # The C library's function, in CUDA under the same name: TVM lowers no fmod of its own for a CPU.
        wide, symbol = (dtype, "fmod") if dtype == "float64" else ("float32", "fmodf")
        left, right = node.emit(cast(left, wide)), node.emit(cast(right, wide))

        def rest(x: Any, y: Any) -> Any:
            found = tirx.call_pure_extern(wide, symbol, x, y)
            return found if node.attr("fmod", 0) else _towards(found, y, symbol.replace("fmod", "copysign"))

        return cast(node.te(lambda a, b: _broadcast(a, b, rest), left, right), dtype)
    function = tirx.truncmod if node.attr("fmod", 0) else tirx.floormod
    return node.te(lambda a, b: _broadcast(a, b, lambda x, y: function(x, _divisor(x, y))), left, right)


def _towards(rest: Any, divisor: Any, signed: str) -> Any:
    """A remainder with the sign of the divisor; so has a 0."""
    other = tirx.Or(tirx.And(rest < 0, divisor > 0), tirx.And(rest > 0, divisor < 0))
    dtype = str(divisor.ty.dtype)
    nothing = tirx.call_pure_extern(dtype, signed, tirx.const(0, dtype), divisor)
    return tirx.Select(rest == 0, nothing, tirx.Select(other, rest + divisor, rest))


def _divisor(x: Any, y: Any) -> Any:
    """`y`, or 1 where the CPU would stop the process: for 0, and for -1 below the least number, which 1 leaves too."""
    dtype = str(y.ty.dtype)
    stops = tirx.EQ(y, tirx.const(0, dtype))
    if dtype.startswith("int"):
        # By its bits, of which TVM's simplifier moves nothing to the other side, where it would overflow.
        least = tirx.EQ(tirx.reinterpret(f"u{dtype}", x), tirx.const(1 << int(dtype[3:]) - 1, f"u{dtype}"))
        stops = tirx.Or(stops, tirx.And(least, tirx.EQ(y, tirx.const(-1, dtype))))
    return tirx.Select(stops, tirx.const(1, dtype), y)


def _broadcast(left: te.Tensor, right: te.Tensor, function: Callable[[Any, Any], Any]) -> te.Tensor:
    rank = max(len(left.shape), len(right.shape))

    def size(axis: int) -> Any:
        dims = [t.shape[axis - rank + len(t.shape)] for t in (left, right) if axis >= rank - len(t.shape)]
        return next((dim for dim in dims if not _is_one(dim)), dims[0])

    def read(tensor: te.Tensor, index: tuple[Any, ...]) -> Any:
        own = index[rank - len(tensor.shape) :]
        return tensor(*(0 if _is_one(dim) else i for dim, i in zip(tensor.shape, own, strict=True)))

    shape = [size(axis) for axis in range(rank)]
    return te.compute(shape, lambda *index: function(read(left, index), read(right, index)), name="elementwise")


def _is_one(dim: Any) -> bool:
    return isinstance(dim, tirx.IntImm) and int(dim) == 1


@op("Pow")
def _power(node: Node) -> Any:
    """The result has the base's dtype. Small whole exponents are products, which is exact and fast."""
    base, dtype = node.tensor(0), node.dtype(0)
    if node.is_known(1) and not node.inputs[1].symbolic and node.inputs[1].array.size == 1:
        exponent = float(node.scalar(1, "the exponent"))
        if node.shape(1) in ([], [1]) and node.rank(0) >= node.rank(1):
            if exponent in (1.0, 2.0, 3.0):
                return functools.reduce(lambda a, b: node.emit(relax.op.multiply(a, b)), [base] * int(exponent))
            if exponent == 0.5 and is_float(dtype):
                low = node.emit(relax.op.equal(base, scalar(-math.inf, base)))  # pow(-inf, 0.5) is inf
                return relax.op.where(low, scalar(math.inf, base), node.emit(relax.op.sqrt(base)))
    wide = "float64" if is_integer(dtype) or dtype == "float64" else "float32"
    base, exponent_tensor = aligned(node, base, node.tensor(1))
    result = relax.op.power(node.emit(cast(base, wide)), node.emit(cast(exponent_tensor, wide)))
    return cast(node.emit(result), dtype)


@op("Round")
def _round(node: Node) -> Any:
    """Halves to even."""
    return node.te(lambda x: te.compute(x.shape, lambda *i: tirx.nearbyint(x(*i)), name="round"), node.tensor(0))


@op("Reciprocal")
def _reciprocal(node: Node) -> Any:
    x = node.tensor(0)
    return relax.op.divide(scalar(1, x), x)


@op("IsNaN")
def _is_nan(node: Node) -> Any:
    return relax.op.isnan(_testable(node))


def _testable(node: Node) -> Any:
    """TVM asks float32 and float64 alone whether they are NaN or infinite; widening keeps the answer."""
    x = _numbers(node)
    return node.emit(cast(x, "float32")) if is_low_precision(dtype_of(x)) else x


@op("IsInf")
def _is_inf(node: Node) -> Any:
    x = _testable(node)
    infinite = node.emit(relax.op.isinf(x))
    if not node.attr("detect_negative", 1):
        infinite = node.emit(relax.op.logical_and(infinite, node.emit(relax.op.greater(x, scalar(0, x)))))
    if not node.attr("detect_positive", 1):
        infinite = node.emit(relax.op.logical_and(infinite, node.emit(relax.op.less(x, scalar(0, x)))))
    return infinite


@op("BitShift")
def _bit_shift(node: Node) -> Any:
    """A shift by the width or more, or by less than 0, leaves 0, or of a negative number shifted right -1."""
    left, right = aligned(node, node.tensor(0), node.tensor(1))
    dtype = dtype_of(left)
    width, towards_left = int(dtype.lstrip("uint")), node.attr("direction") == "LEFT"

    def shift(x: Any, amount: Any) -> Any:
        zero = tirx.const(0, dtype)
        # In int64: TVM's simplifier subtracts what it compares, and stops at an unsigned number that turns negative.
        places = amount.astype("int64")
        inside = tirx.And(places >= 0, places < width)
        safe = tirx.Select(inside, amount, zero)
        beyond = zero if towards_left or dtype.startswith("uint") else x >> tirx.const(width - 1, dtype)
        return tirx.Select(inside, x << safe if towards_left else x >> safe, beyond)

    return node.te(lambda a, b: _broadcast(a, b, shift), left, right)


@op("Where")
def _where(node: Node) -> Any:
    return relax.op.where(*aligned(node, node.tensor(0), node.tensor(1), node.tensor(2)))


@op("Clip")
def _clip(node: Node) -> Any:
    """Bounds are attributes before opset 11 and scalars after; where the bounds cross, the upper one wins."""
    x = node.tensor(0)
    for index, name, function in ((1, "min", relax.op.maximum), (2, "max", relax.op.minimum)):
        if node.has(index):
            bound = node.tensor(index)
            x = node.emit(function(x, bound if node.rank(index) == 0 else node.emit(relax.op.reshape(bound, ()))))
        elif node.attr(name) is not None:
            x = node.emit(function(x, scalar(node.attr(name), x)))
    return x


@op("Cast")
def _cast(node: Node) -> Any:
    return _convert(node, node.attr_dtype("to"))


@op("CastLike")
def _cast_like(node: Node) -> Any:
    return _convert(node, node.dtype(1))


def _convert(node: Node, dtype: str) -> Any:
    source = node.dtype(0)
    for name in (dtype, source):
        if name not in DTYPES and name not in FORMATS:
            raise Refused(f"a cast with the dtype {name}")
    if dtype == source:
        return node.inputs[0]
    if node.is_known(0) and not node.inputs[0].symbolic and node.inputs[0].array.size == 1:
        # CastLike of a constant, as function bodies have it: still a constant to what comes after.
        with contextlib.suppress(Undecided):
            return Known(cast_known(node, node.inputs[0].array, dtype), dtype)
    if dtype in FORMATS and (dtype != FLOAT8 or not node.attr("saturate", 1)):
        saturates, rounding = bool(node.attr("saturate", 1)), node.attr("round_mode", "up")
        return narrowed(node, _numbers(node), dtype, saturates=saturates, rounding=rounding)
    x = node.tensor(0) if source in DTYPES else _numbers(node)
    if FLOAT8 in (dtype, dtype_of(x)):
        return through_float8(node, x, dtype)
    if dtype == "bool" and dtype_of(x) != "bool":
        return relax.op.not_equal(x, scalar(0, x))
    return cast(x, dtype)


def _numbers(node: Node) -> Any:
    return node.materialize(widened(node, node.inputs[0]) if node.dtype(0) in FORMATS else node.inputs[0])


@op("BitCast")
def _bit_cast(node: Node) -> Any:
    """The same bits as another dtype of as many."""
    dtype = node.attr_dtype("to")
    if dtype in FORMATS or node.dtype(0) in FORMATS:
        codes = node.bits(as_codes(node, node.inputs[0])[0], CARRIER)
        return of_codes(node, codes, dtype) if dtype in FORMATS else node.bits(codes, dtype)
    if dtype not in DTYPES:
        raise Refused(f"a cast to the dtype {dtype}")
    x = node.tensor(0)
    if "bool" in (dtype, dtype_of(x)):
        byte = node.emit(cast(x, "uint8")) if dtype_of(x) == "bool" else x
        return _convert(node, dtype) if dtype == "bool" else node.bits(byte, dtype)
    return node.bits(x, dtype)


@op("OptionalHasElement")
def _has_element(node: Node) -> Any:
    """Whether it is there, which of tensors is known."""
    return Known(np.array(node.has(0)), "bool")


@op("Identity", "OptionalGetElement")
def _identity(node: Node) -> Any:
    return node.inputs[0]


@op("Dropout")
def _dropout(node: Node) -> Any:
    """The identity at inference; the mask, where asked for, keeps everything."""
    if node.has(2) and node.scalar(2, "training_mode") and node.scalar(1, "ratio") > 0:
        raise Refused("training_mode=1")
    if node.output_count == 1:
        return node.inputs[0]
    dtype = "bool" if node.opset >= 10 else node.dtype(0)
    shape = relax.ShapeExpr(node.tensor(0).ty.shape.values)
    return node.inputs[0], relax.op.full(shape, relax.const(1, dtype), dtype)
