"""Element types that numpy, DLPack and TVM lack or carry badly: each a row of its bits, and how codes become numbers.

Such a value travels as its codes, a byte each, in the low bits; what is above them is ignored. Operators that only move
elements move codes; a cast or a (de)quantization converts, by one arithmetic that the row's bits decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CARRIER", "FORMATS", "Format", "code_of", "number_of"]

CARRIER = "uint8"
"""The dtype that codes have in a program and at its interface."""


@dataclass(frozen=True, slots=True)
class Format:
    """One element type: a float with so many bits of `mantissa` and a `bias` of its exponent, or with neither a whole
    number.

    `largest` is the code of the largest finite number. `infinity` and `nan` are codes without a sign, None where there
    is none; that of a sign alone is NaN where `zero_is_positive`, else -0.
    """

    bits: int
    is_signed: bool = True
    mantissa: int | None = None
    bias: int = 0
    largest: int = 0
    infinity: int | None = None
    nan: int | None = None
    zero_is_positive: bool = False

    def __post_init__(self) -> None:
        assert 0 < self.bits <= 8
        assert self.mantissa is None or self.largest < self.sign or not self.is_signed

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.mantissa is not None

    @property
    def has_zero(self) -> bool:
        """Whether it has one: powers of two, which have neither sign nor mantissa, have none."""
        return self.is_signed or not self.is_float

    @property
    def sign(self) -> int:
        """The highest bit."""
        return int(1 << (self.bits - 1))

    @property
    def low(self) -> int:
        """The least whole number."""
        return -self.sign if self.is_signed else 0

    @property
    def high(self) -> int:
        """The largest whole number."""
        return self.sign - 1 if self.is_signed else 2 * self.sign - 1

    @property
    def wide(self) -> str:
        """The least of numpy's dtypes that has all of its numbers and is computed with."""
        return "float32" if self.is_float else "int8" if self.is_signed else "uint8"


FORMATS = {
    "int2": Format(2),
    "uint2": Format(2, is_signed=False),
    "int4": Format(4),
    "uint4": Format(4, is_signed=False),
    "float4_e2m1fn": Format(4, mantissa=1, bias=1, largest=0x7),
    "float8_e4m3fn": Format(8, mantissa=3, bias=7, largest=0x7E, nan=0x7F),
    "float8_e4m3fnuz": Format(8, mantissa=3, bias=8, largest=0x7F, zero_is_positive=True),
    "float8_e5m2": Format(8, mantissa=2, bias=15, largest=0x7B, infinity=0x7C, nan=0x7E),
    "float8_e5m2fnuz": Format(8, mantissa=2, bias=16, largest=0x7F, zero_is_positive=True),
    "float8_e8m0fnu": Format(8, is_signed=False, mantissa=0, bias=127, largest=0xFE, nan=0xFF),
}
"""By the names that ml_dtypes gives them."""


def number_of(code: Any, row: Format) -> Any:
    """Return the number of a code, a byte in TIR, as `row.wide`."""
    from tvm import tirx

    if not row.is_float:
        byte = (code.astype("int32") << tirx.const(8 - row.bits, "int32")).astype(row.wide)
        return byte >> tirx.const(8 - row.bits, row.wide)
    word = code.astype("uint32") & _word(2 * row.sign - 1)
    if not row.has_zero:
        least = tirx.reinterpret("float32", _word(1 << 22))  # 2^-127
        number = tirx.reinterpret("float32", word << _word(23))
        number = tirx.Select(word == _word(0), least, number)
        return tirx.Select(word == _word(row.nan or 0), _nan(), number)
    assert row.mantissa is not None
    size = word & _word(row.sign - 1)
    sign = (word & _word(row.sign)) << _word(32 - row.bits)
    number = tirx.reinterpret("float32", sign | (size << _word(23 - row.mantissa)))
    number = number * tirx.const(2.0 ** (127 - row.bias), "float32")
    if row.infinity is not None:
        infinite = tirx.reinterpret("float32", sign | _word(0x7F800000))
        number = tirx.Select(size == _word(row.infinity), infinite, number)
    if row.zero_is_positive:
        return tirx.Select(word == _word(row.sign), _nan(), number)
    return number if row.nan is None else tirx.Select(size > _word(row.infinity or row.largest), _nan(), number)


def code_of(value: Any, row: Format, *, saturates: bool = True, rounding: str = "up") -> Any:
    """Return the code of a float32 in TIR, or of a whole number for a format of these, as a byte.

    Halves round to even, but of powers of two, for which `rounding` says how. What is too large is the largest number,
    or where it does not saturate infinity, or NaN; a whole number has its low bits.
    """
    from tvm import tirx

    if not row.is_float:
        return value.astype("int32").astype("uint8") & tirx.const((1 << row.bits) - 1, "uint8")
    if not row.has_zero:
        return _power_of(value, saturates=saturates, rounding=rounding)
    assert row.mantissa is not None
    word = tirx.reinterpret("uint32", value)
    size = word & _word(0x7FFFFFFF)
    cut = 23 - row.mantissa
    even = size + _word((1 << (cut - 1)) - 1) + ((size >> _word(cut)) & _word(1))
    normal = (even >> _word(cut)) - _word((127 - row.bias) << row.mantissa)
    # A float whose last digit is that of the subnormal numbers: what is added to it is rounded to that.
    exponent = 1 - row.bias + cut
    number = tirx.reinterpret("float32", size)
    shifted = tirx.reinterpret("uint32", number + tirx.const(2.0**exponent, "float32"))
    is_small = number < tirx.const(2.0 ** (1 - row.bias), "float32")
    found = tirx.Select(is_small, shifted - _word((exponent + 127) << 23), _within(normal, row, saturates=saturates))
    unknown = row.sign if row.zero_is_positive else row.nan or 0
    found = tirx.Select(size > _word(0x7F800000), _word(unknown), found)
    signed = found | ((word >> _word(32 - row.bits)) & _word(row.sign))
    return (tirx.Select(found == _word(0), found, signed) if row.zero_is_positive else signed).astype("uint8")


def _within(code: Any, row: Format, *, saturates: bool) -> Any:
    """The code, or what is in place of one over the largest number's."""
    from tvm import tirx

    over = row.infinity or row.nan or (row.sign if row.zero_is_positive else None)
    if saturates or over is None:
        return tirx.min(code, _word(row.largest))
    return tirx.Select(code > _word(row.largest), _word(over), code)


def _power_of(value: Any, *, saturates: bool, rounding: str) -> Any:
    """The exponent of a float32, its sign left out, as ONNX rounds it: up, down, or to the nearest with halves up."""
    from tvm import tirx

    size = tirx.reinterpret("uint32", value) & _word(0x7FFFFFFF)
    # What is added to the bits of a normal number, and the first subnormal one that is not rounded to 2^-127.
    up, first = {"up": (0x7FFFFF, 0x400001), "nearest": (0x400000, 0x600000), "down": (0, 0x800000)}[rounding]
    exponent = (size + _word(up)) >> _word(23)
    exponent = tirx.Select(size < _word(first), _word(0), exponent)
    top = _word(0xFE) if saturates else _word(0xFF)
    found = tirx.min(exponent, top)
    if not saturates:
        found = tirx.Select(size < _word(0x400000), _word(0xFF), found)
    return tirx.Select(size > _word(0x7F800000), _word(0xFF), found).astype("uint8")


def _word(value: int) -> Any:
    from tvm import tirx

    return tirx.const(value, "uint32")


def _nan() -> Any:
    from tvm import tirx

    return tirx.const(float("nan"), "float32")
