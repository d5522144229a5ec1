"""exp, log, log1p, tanh, erf and sigmoid of vectors as LLVM IR functions, which are inlined where they are called.

They stand in for one libm call a lane. For float32; within 3 ulp of the true value over the whole range
(erf: 6), with infinities, NaN, signed zeros and subnormal results as libm has them, but for exp and sigmoid, whose
subnormal results are 0
(tests/lowering/test_vector_math.py). Where it says Cephes: expf.c, logf.c and tanhf.c of the Cephes library,
S. L. Moshier. The erf is the rational form of Eigen's and XLA's erf.

They are LLVM IR and not TIR because TVM's LLVM code generator takes exponential time for nested lets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

__all__ = ["FUNCTIONS", "function_name", "llvm_module"]

LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts, the first with few bits: Cephes' argument reduction."""

EXP_LOW, EXP_HIGH = -87.33654, 89.0
"""exp is 0 below, where it would be subnormal, and infinite above."""

EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
ERF_ABOVE = (
    2.2905065861350646e-4, 3.4082910107109506e-3, 5.0955695062380861e-2, 1.8520832239976145e-1, 1.128379143519084,
)  # fmt: skip
ERF_BELOW = (
    -1.1791602954361697e-7, 2.3547966471313185e-5, 1.0179625278914885e-3, 1.4070470171167667e-2,
    1.1098505178285362e-1, 4.9746925110067538e-1, 1.0,
)  # fmt: skip
ERF_END = 3.7439211627767994
"""Where the rational form of erf ends: 1 is within 2 ulp from here on."""

TANH_SERIES_END = 0.625
SQRT_HALF = 0.707106781186547524
SMALLEST_NORMAL = 1.17549435e-38
SUBNORMAL_SCALE, SUBNORMAL_EXPONENT = 8388608.0, 23.0
SCALE, SCALE_LANES = "llvm.x86.avx512.mask.scalef.ps.512", 16
INFINITY = float("inf")
NAN = float("nan")

Value = str
"""An SSA name or a constant."""


class _Body:
    """The instructions of one function of vectors of `lanes` elements, one method an instruction."""

    def __init__(self, lanes: int, scales: bool) -> None:
        self.lines: list[str] = []
        self.scales = scales
        """Whether the machine multiplies a vector by powers of two in one instruction: AVX-512's vscalefps."""
        self.floats, self.ints, self.bools = (
            kind if lanes == 1 else f"<{lanes} x {kind}>" for kind in ("float", "i32", "i1")
        )
        self.suffix = "f32" if lanes == 1 else f"v{lanes}f32"
        self.lanes = lanes

    def _emit(self, text: str) -> Value:
        name = f"%t{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def _splat(self, kind: str, text: str) -> Value:
        return text if self.lanes == 1 else f"splat ({kind} {text})"

    def f(self, value: float) -> Value:
        """Return a constant, rounded to float32; LLVM writes it as the bits of the equal double."""
        single = struct.unpack("f", struct.pack("f", value))[0]
        return self._splat("float", f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}")

    def i(self, value: int) -> Value:
        return self._splat("i32", str(value))

    def op(self, name: str, a: Value, b: Value) -> Value:
        """Emit fadd, fsub, fmul or fdiv."""
        return self._emit(f"{name} {self.floats} {a}, {b}")

    def int_op(self, name: str, a: Value, b: Value) -> Value:
        return self._emit(f"{name} {self.ints} {a}, {b}")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Emit a * b + c, in one rounding where the machine has it."""
        kind = self.floats
        return self._emit(f"call {kind} @llvm.fmuladd.{self.suffix}({kind} {a}, {kind} {b}, {kind} {c})")

    def unary(self, name: str, a: Value) -> Value:
        """Emit floor or fabs."""
        return self._emit(f"call {self.floats} @llvm.{name}.{self.suffix}({self.floats} {a})")

    def copysign(self, size: Value, sign: Value) -> Value:
        kind = self.floats
        return self._emit(f"call {kind} @llvm.copysign.{self.suffix}({kind} {size}, {kind} {sign})")

    def when(self, test: str, a: Value, b: Value, yes: Value, no: Value) -> Value:
        """Emit `yes` where the comparison holds (`olt`: not with NaN; `uno`: only with NaN), else `no`."""
        condition = self._emit(f"fcmp {test} {self.floats} {a}, {b}")
        return self._emit(f"select {self.bools} {condition}, {self.floats} {yes}, {self.floats} {no}")

    def to_int(self, a: Value) -> Value:
        return self._emit(f"fptosi {self.floats} {a} to {self.ints}")

    def to_float(self, n: Value) -> Value:
        return self._emit(f"sitofp {self.ints} {n} to {self.floats}")

    def bits(self, a: Value) -> Value:
        return self._emit(f"bitcast {self.floats} {a} to {self.ints}")

    def from_bits(self, n: Value) -> Value:
        return self._emit(f"bitcast {self.ints} {n} to {self.floats}")

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        total = self.f(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fma(total, x, self.f(coefficient))
        return total

    def scale(self, x: Value, n: Value) -> Value:
        """Emit x * 2**n for an integral float n of any size, rounded once; where `scales`."""
        kind = self.floats
        source = f"{kind} zeroinitializer, i16 -1, i32 4"
        return self._emit(f"call {kind} @{SCALE}({kind} {x}, {kind} {n}, {source})")

    def power_of_two(self, n: Value) -> Value:
        """Emit 2**n for the integer n in -126..127."""
        return self.from_bits(self.int_op("shl", self.int_op("add", n, self.i(127)), self.i(23)))


def _exp(e: _Body, x: Value) -> Value:
    """Cephes. exp(x) = 2**n exp(r), |r| <= ln 2 / 2; 2**n in two factors, for the largest results.

    Results under the least normal number are chosen to be 0: an operation that underflows, or reads what did, takes a
    hundred cycles on x86-64, and in attention all masked scores would, by -inf as by Swin's -100.
    """
    low, high = e.f(EXP_LOW), e.f(EXP_HIGH)
    c = e.when("olt", x, low, e.f(0.0), x)
    c = e.when("ogt", c, high, high, c) if e.scales else e.when("olt", c, high, c, high)
    n = e.unary("floor", e.fma(c, e.f(LOG2_E), e.f(0.5)))
    r = e.fma(n, e.f(-LN2_LOW), e.fma(n, e.f(-LN2_HIGH), c))
    value = e.op("fadd", e.fma(e.horner(r, EXP), e.op("fmul", r, r), r), e.f(1.0))
    if e.scales:
        return e.when("olt", x, low, e.f(0.0), e.scale(value, n))
    whole = e.to_int(n)
    half = e.int_op("ashr", whole, e.i(1))
    scaled = e.op("fmul", e.op("fmul", value, e.power_of_two(half)), e.power_of_two(e.int_op("sub", whole, half)))
    return e.when("uno", x, x, x, e.when("olt", x, low, e.f(0.0), scaled))


def _log(e: _Body, x: Value) -> Value:
    """Cephes. log(x) = k ln 2 + log(m), sqrt(1/2) <= m < sqrt(2); subnormal x is scaled by 2**23 first."""
    tiny = e.f(SMALLEST_NORMAL)
    bits = e.bits(e.when("olt", x, tiny, e.op("fmul", x, e.f(SUBNORMAL_SCALE)), x))
    k = e.to_float(e.int_op("sub", e.int_op("lshr", bits, e.i(23)), e.i(126)))
    k = e.op("fsub", k, e.when("olt", x, tiny, e.f(SUBNORMAL_EXPONENT), e.f(0.0)))
    m = e.from_bits(e.int_op("or", e.int_op("and", bits, e.i(0x007FFFFF)), e.i(0x3F000000)))
    root = e.f(SQRT_HALF)
    k = e.op("fsub", k, e.when("olt", m, root, e.f(1.0), e.f(0.0)))
    r = e.op("fsub", e.when("olt", m, root, e.op("fadd", m, m), m), e.f(1.0))
    square = e.op("fmul", r, r)
    tail = e.fma(e.horner(r, LOG), e.op("fmul", square, r), e.op("fmul", k, e.f(LN2_LOW)))
    tail = e.fma(square, e.f(-0.5), tail)
    value = e.fma(k, e.f(LN2_HIGH), e.op("fadd", r, tail))
    value = e.when("oeq", x, e.f(0.0), e.f(-INFINITY), value)
    value = e.when("olt", x, e.f(0.0), e.f(NAN), value)
    value = e.when("oeq", x, e.f(INFINITY), x, value)
    return e.when("uno", x, x, x, value)


def _log1p(e: _Body, x: Value) -> Value:
    """log(u) x / (u - 1) for u = 1 + x, which cancels the rounding of u (Kahan); x where u is 1."""
    u = e.op("fadd", x, e.f(1.0))
    value = e.op("fmul", _log(e, u), e.op("fdiv", x, e.op("fsub", u, e.f(1.0))))
    value = e.when("oeq", u, e.f(1.0), x, value)
    return e.when("oeq", u, e.f(INFINITY), u, value)


def _tanh(e: _Body, x: Value) -> Value:
    """Cephes. An odd polynomial up to 0.625, then sign(x) (1 - 2 / (exp(2 |x|) + 1))."""
    a = e.unary("fabs", x)
    square = e.op("fmul", a, a)
    series = e.fma(e.op("fmul", e.horner(square, TANH), square), a, a)
    grown = e.op("fadd", _exp(e, e.op("fadd", a, a)), e.f(1.0))
    far = e.op("fsub", e.f(1.0), e.op("fdiv", e.f(2.0), grown))
    return e.copysign(e.when("olt", a, e.f(TANH_SERIES_END), series, far), x)


def _erf(e: _Body, x: Value) -> Value:
    """x P(x**2) / Q(x**2) within the range where it is not yet sign(x); NaN goes through all of it."""
    low, high = e.f(-ERF_END), e.f(ERF_END)
    c = e.when("ogt", x, high, high, x)
    c = e.when("olt", c, low, low, c)
    square = e.op("fmul", c, c)
    value = e.op("fdiv", e.op("fmul", c, e.horner(square, ERF_ABOVE)), e.horner(square, ERF_BELOW))
    return e.when("one", c, x, e.copysign(e.f(1.0), x), value)


def _sigmoid(e: _Body, x: Value) -> Value:
    """With a = exp(-|x|): 1 / (1 + a), and a / (1 + a) for negative x, which does not overflow."""
    a = _exp(e, e.op("fsub", e.f(-0.0), e.unary("fabs", x)))
    above = e.when("olt", x, e.f(0.0), a, e.f(1.0))
    return e.op("fdiv", above, e.op("fadd", a, e.f(1.0)))


FUNCTIONS: dict[str, Callable[[_Body, Value], Value]] = {
    "exp": _exp,
    "log": _log,
    "log1p": _log1p,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
}


def function_name(name: str, lanes: int) -> str:
    """Return the symbol of the function `name` for vectors of `lanes` float32 elements, or for one element."""
    return f"relaxc_{name}_{lanes}"


def llvm_module(wanted: Sequence[tuple[str, int]], *, avx512: bool = False) -> str:
    """Return LLVM IR that defines the functions `wanted`, as (name, lanes); with `avx512`, in its instructions too."""
    functions, declarations = [], set()
    for name, lanes in wanted:
        body = _Body(lanes, scales=avx512 and lanes == SCALE_LANES)
        result = FUNCTIONS[name](body, "%x")
        lines = "\n".join(body.lines)
        kind = body.floats
        symbol = function_name(name, lanes)
        functions.append(f"define {kind} @{symbol}({kind} %x) {{\n{lines}\n  ret {kind} {result}\n}}")
        declarations |= {f"declare {kind} @llvm.{f}.{body.suffix}({kind})" for f in ("floor", "fabs")}
        declarations.add(f"declare {kind} @llvm.copysign.{body.suffix}({kind}, {kind})")
        if body.scales:
            declarations.add(f"declare {kind} @{SCALE}({kind}, {kind}, {kind}, i16, i32)")
        declarations.add(f"declare {kind} @llvm.fmuladd.{body.suffix}({kind}, {kind}, {kind})")
    return "\n".join([*sorted(declarations), *functions, ""])
