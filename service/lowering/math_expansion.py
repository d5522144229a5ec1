"""exp, log, tanh, erf and sigmoid as polynomials that LLVM vectorizes, instead of one libm call a lane.

All are for float32, and are used for float16 and bfloat16 through it; float64 stays with libm. Within 3 ulp
of the true value over the whole range (erf: 6), with infinities, NaN, signed zeros and subnormal results as
libm has them (tests/lowering/test_math_expansion.py). A power of 2, 3 or 4 becomes products. Where it says
Cephes: expf.c, logf.c and tanhf.c of the Cephes library, S. L. Moshier. The erf is the rational form of
Eigen's and XLA's erf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call

__all__ = ["EXPANDED", "expand_math"]

LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts, the first with few bits: Cephes' argument reduction."""

EXP_LOW, EXP_HIGH = -104.0, 89.0
"""exp is 0 below and infinite above in float32, even with rounding and subnormals."""

EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
ERF_ABOVE = (
    2.2905065861350646e-4,
    3.4082910107109506e-3,
    5.0955695062380861e-2,
    1.8520832239976145e-1,
    1.128379143519084,
)
ERF_BELOW = (
    -1.1791602954361697e-7, 2.3547966471313185e-5, 1.0179625278914885e-3, 1.4070470171167667e-2,
    1.1098505178285362e-1, 4.9746925110067538e-1, 1.0,
)  # fmt: skip
ERF_END = 3.7439211627767994
"""Where the rational form of erf ends: 1 is within 2 ulp from here on."""

TANH_SERIES_END = 0.625
SMALLEST_NORMAL = 1.17549435e-38
INFINITY_BITS = 0x7F800000


def expand_math(func: Any) -> Any:
    """`func` with each call of a function in `EXPANDED` on floats of at most 32 bits as arithmetic."""
    return func.with_body(tvm_ffi.structural_map(func.body, (Call, _expanded)))


def _expanded(call: Any) -> Any:
    name, dtype = getattr(call.op, "name", ""), str(call.ty.dtype)
    if dtype not in ("float32", "float16", "bfloat16"):
        return call
    if name in EXPANDED:
        return _bind(call.args[0].astype("float32"), EXPANDED[name]).astype(dtype)
    power = getattr(call.args[1], "value", None) if name == "tirx.pow" else None
    if power in (2, 3, 4):
        return _bind(call.args[0], lambda x: _product(x, int(power)))
    return call


def _product(x: Any, power: int) -> Any:
    """x**2, x**3 = x**2 x, x**4 = (x**2)**2."""
    if power == 3:
        return x * x * x
    return x * x if power == 2 else _bind(x * x, lambda square: square * square)


def _bind(value: Any, body: Callable[[Any], Any]) -> Any:
    """`let t = value in body(t)`, so that `value` is computed once."""
    name = tirx.Var("t", value.ty.dtype)
    return tirx.Let(name, value, body(name))


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _i32(value: int) -> Any:
    return tirx.const(value, "int32")


def _bits(x: Any) -> Any:
    return tirx.reinterpret("int32", x)


def _is_nan(x: Any) -> Any:
    """On the bits: TVM's simplifier takes x != x for false."""
    return (_bits(x) & _i32(0x7FFFFFFF)) > _i32(INFINITY_BITS)


def _horner(x: Any, coefficients: Sequence[float]) -> Any:
    total = _f32(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _f32(coefficient)
    return total


def _clamp(x: Any, low: float, high: float) -> Any:
    """x within [low, high]; NaN gives `high`, which keeps the conversion to integers defined."""
    upper = tirx.Select(x < _f32(high), x, _f32(high))
    return _bind(upper, lambda u: tirx.Select(u > _f32(low), u, _f32(low)))


def _power_of_two(n: Any) -> Any:
    """2**n as a float for the int32 n in -126..127."""
    return tirx.reinterpret("float32", (n + _i32(127)) << _i32(23))


def _exp(x: Any) -> Any:
    """Cephes. exp(x) = 2**n exp(r), |r| <= ln 2 / 2; 2**n in two factors, for subnormals and the largest results."""

    def scaled(n: Any, clamped: Any) -> Any:
        def of_remainder(r: Any) -> Any:
            value = _horner(r, EXP) * (r * r) + r + _f32(1.0)
            half = n.astype("int32") >> _i32(1)
            return _bind(half, lambda h: value * _power_of_two(h) * _power_of_two(n.astype("int32") - h))

        return _bind(clamped - n * _f32(LN2_HIGH) - n * _f32(LN2_LOW), of_remainder)

    def of_clamped(clamped: Any) -> Any:
        return _bind(tirx.floor(clamped * _f32(LOG2_E) + _f32(0.5)), lambda n: scaled(n, clamped))

    result = _bind(_clamp(x, EXP_LOW, EXP_HIGH), of_clamped)
    return tirx.Select(_is_nan(x), x, result)


def _log(x: Any) -> Any:
    """Cephes. log(x) = e ln 2 + log(m), sqrt(1/2) <= m < sqrt(2); subnormal x is scaled by 2**23 first."""
    subnormal = x < _f32(SMALLEST_NORMAL)

    def of_bits(bits: Any) -> Any:
        exponent = ((bits >> _i32(23)) - _i32(126)).astype("float32") - tirx.Select(subnormal, _f32(23.0), _f32(0.0))
        mantissa = tirx.reinterpret("float32", (bits & _i32(0x007FFFFF)) | _i32(0x3F000000))
        return _bind(mantissa, lambda m: _log_of_parts(exponent, m))

    scaled = tirx.Select(subnormal, x * _f32(8388608.0), x)
    regular = _bind(_bits(scaled), of_bits)
    regular = tirx.Select(x < _f32(0.0), _f32(float("nan")), regular)
    regular = tirx.Select(x == _f32(0.0), _f32(float("-inf")), regular)
    # On the bits: TVM turns a negated comparison into the opposite one, which NaN does not meet either.
    kept = (_bits(x) >= _i32(INFINITY_BITS)) | _is_nan(x)
    return tirx.Select(kept, x, regular)


def _log_of_parts(exponent: Any, m: Any) -> Any:
    low = m < _f32(0.707106781186547524)
    e = exponent - tirx.Select(low, _f32(1.0), _f32(0.0))
    r = tirx.Select(low, m + m, m) - _f32(1.0)

    def of(e: Any, r: Any) -> Any:
        tail = _horner(r, LOG) * (r * r * r) + e * _f32(LN2_LOW) - r * r * _f32(0.5)
        return r + tail + e * _f32(LN2_HIGH)

    return _bind(e, lambda e: _bind(r, lambda r: of(e, r)))


def _tanh(x: Any) -> Any:
    """Cephes. An odd polynomial up to 0.625, then sign(x) (1 - 2 / (exp(2 |x|) + 1))."""
    size = tirx.reinterpret("float32", _bits(x) & _i32(0x7FFFFFFF))

    def of_size(a: Any) -> Any:
        series = _bind(a * a, lambda s: _horner(s, TANH) * s * a + a)
        far = _f32(1.0) - _f32(2.0) / (_exp(a + a) + _f32(1.0))
        value = tirx.Select(a < _f32(TANH_SERIES_END), series, far)
        return tirx.reinterpret("float32", _bits(value) | (_bits(x) & _i32(-0x80000000)))

    return _bind(size, of_size)


def _erf(x: Any) -> Any:
    """x P(x**2) / Q(x**2) within the range where it is not yet sign(x)."""

    def of_clamped(c: Any) -> Any:
        ratio = _bind(c * c, lambda s: c * _horner(s, ERF_ABOVE) / _horner(s, ERF_BELOW))
        ratio = tirx.Select(x > _f32(ERF_END), _f32(1.0), ratio)
        return tirx.Select(x < _f32(-ERF_END), _f32(-1.0), ratio)

    return tirx.Select(_is_nan(x), x, _bind(_clamp(x, -ERF_END, ERF_END), of_clamped))


def _sigmoid(x: Any) -> Any:
    """With a = exp(-|x|): 1 / (1 + a), and a / (1 + a) for negative x, which does not overflow."""
    negative_size = tirx.reinterpret("float32", _bits(x) | _i32(-0x80000000))

    def of(a: Any) -> Any:
        return tirx.Select(x < _f32(0.0), a, _f32(1.0)) / (_f32(1.0) + a)

    return _bind(_exp(negative_size), of)


EXPANDED: dict[str, Callable[[Any], Any]] = {
    "tirx.exp": _exp,
    "tirx.log": _log,
    "tirx.tanh": _tanh,
    "tirx.erf": _erf,
    "tirx.sigmoid": _sigmoid,
}
"""The functions that are expanded, by the name of their TIR operator."""
