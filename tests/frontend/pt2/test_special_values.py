"""Operators by dtypes by the values at which arithmetic goes wrong, through every stage, against torch.

NaN, infinities, zeros of both signs, the least and the largest numbers, powers of two, halves, and for integers what
wraps, divides by -1, is shifted by the width or raised to hundreds. Each program has all operators of a kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from relaxc.service.frontend.pt2.reference import to_numpy
from tests.frontend.pt2.support import by_every_stage, export

Operators = Mapping[str, Callable[..., torch.Tensor]]
INF, NAN = float("inf"), float("nan")
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
INTEGERS = {name: getattr(torch, name) for name in ("int64", "uint8", "int8", "int16", "int32")}
RELATIVE = {"float64": 1e-12, "float32": 3e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def _named(*functions: Callable[..., torch.Tensor]) -> dict[str, Callable[..., torch.Tensor]]:
    return {function.__name__: function for function in functions}


def _div(mode: str) -> Callable[..., torch.Tensor]:
    return lambda x, y: torch.div(x, y, rounding_mode=mode)


# ruff: noqa: E501
# fmt: off
OF_ONE_FLOAT: Operators = {
    **_named(torch.abs, torch.neg, torch.ceil, torch.floor, torch.sign, torch.trunc, torch.round, torch.exp, torch.expm1),
    **_named(torch.log, torch.log2, torch.log10, torch.log1p, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.atan),
    **_named(torch.sinh, torch.cosh, torch.tanh, torch.asinh, torch.acosh, torch.atanh, torch.erf, torch.sigmoid),
    **_named(torch.relu, F.softsign, F.softshrink, F.hardshrink, F.elu, torch.isnan, torch.isinf, torch.isfinite),
    "x * 0": lambda x: x * 0, "0 / x": lambda x: 0 / x, "x + 0 * x": lambda x: x + 0 * x, "x * -0": lambda x: x * -0.0,
    "1 / (x * 0)": lambda x: 1 / (x * 0), "x - x": lambda x: x - x, "x / x": lambda x: x / x, "x / 0": lambda x: x / 0.0,
    "0 * x == 0": lambda x: x * 0 == 0, "max(0 * x, 0)": lambda x: (x * 0).clamp_min(0), "0.0 - x": lambda x: 0.0 - x,
    "x ** 0": lambda x: x**0, "x ** -2": lambda x: x**-2.0, "2 ** x": lambda x: 2.0**x, "1 ** x": lambda x: 1.0**x,
    "x % 2": lambda x: x % 2.0, "x % inf": lambda x: x % INF, "x // 3": lambda x: x // 3, "x // 0": lambda x: x // 0.0,
    "x == x": lambda x: x == x, "x < x": lambda x: x < x, "not x < 1": lambda x: ~(x < 1), "bool": lambda x: x.bool(),
    "x > 0.1": lambda x: x > 0.1, "x == 0.1": lambda x: x == 0.1, "x <= 0.1": lambda x: x <= 0.1,
    "x < 1e30": lambda x: x < 1e30, "clamp": lambda x: x.clamp(-1, 1),
}
OF_TWO_FLOATS: Operators = {
    **_named(torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.pow, torch.atan2),
    **_named(torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge),
    "not <": lambda x, y: ~(x < y), "x * 0 + y": lambda x, y: x * 0 + y, "x * 0 * y": lambda x, y: x * 0 * y,
    "x - y == 0": lambda x, y: x - y == 0, "where": lambda x, y: torch.where(x < y, x, y),
}
OF_SUMS: Operators = {  # which no dtype rounds away before the end: those of 16 bits are computed in float32
    "(x + y) - y": lambda x, y: (x + y) - y, "(x - y) + y": lambda x, y: (x - y) + y, "(x + 1) - x": lambda x, y: (x + 1) - x,
    "(x + 2 ** 23) - 2 ** 23": lambda x, y: (x + 2.0**23) - 2.0**23, "trunc": _div("trunc"),
}
FLOORS: Operators = _named(torch.fmod, torch.remainder, torch.floor_divide)
OF_ONE_INTEGER: Operators = {
    **_named(torch.neg, torch.abs, torch.sign, torch.bitwise_not, torch.relu),
    "x ** 2": lambda x: x**2, "x ** 0": lambda x: x**0, "x ** 127": lambda x: x**127, "2 ** |x|": lambda x: 2 ** (x & 7),
    "x * 6 // 3": lambda x: x * 6 // 3, "(x * 4 + 1) % 4": lambda x: (x * 4 + 1) % 4, "x // 64 % 32": lambda x: x // 64 % 32,
    "x // 127 // 127": lambda x: x // 127 // 127, "x % 3": lambda x: x % 3, "fmod": lambda x: torch.fmod(x, 3),
    "trunc": lambda x: torch.div(x, 3, rounding_mode="trunc"), "x << 1 >> 1": lambda x: x << 1 >> 1, "x << 40": lambda x: x << 40,
    "x + 1 > x": lambda x: x + 1 > x, "-x < 0": lambda x: -x < 0, "x == 300": lambda x: x == 300, "x > 0.5": lambda x: x > 0.5,
    "half": lambda x: x.half(), "bool": lambda x: x.bool(), "1 / x": lambda x: 1 / x, "int8": lambda x: x.to(torch.int8).long(),
    "uint8": lambda x: (x * 3).to(torch.uint8).long(), "int32": lambda x: x.to(torch.int32), "long": lambda x: (x * 4).long(),
}
OF_TWO_INTEGERS: Operators = {
    **_named(torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.eq, torch.lt, torch.ge, torch.div),
    **_named(torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor),
}
QUOTIENTS: Operators = {
    **_named(torch.floor_divide, torch.remainder, torch.fmod), "trunc": _div("trunc"),
    "x // y * y + x % y": lambda x, y: x // y * y + x % y,
}
# fmt: on


EITHER_ZERO = ("maximum", "minimum", "round", "softshrink", "elu", "tanh")
"""Operators that may return a 0 of another sign than torch's."""


def _floats(dtype: torch.dtype) -> list[float]:
    ends = torch.finfo(dtype)
    common = [
        NAN,
        INF,
        -INF,
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        -2.5,
        3.0,
        -7.0,
        100.0,
        0.1,
        1e-3,
        2.0**-10,
        2.0**13,
        2.0**15,
    ]
    large = [] if dtype is torch.float16 else [2.0**26, 2.0**29, -1e10, 16777217.0]
    return [*common, ends.max, -ends.max, ends.tiny, *large]


def _integers(dtype: torch.dtype) -> list[int]:
    ends = torch.iinfo(dtype)
    below = [-1, -2, -3, -7] if ends.min < 0 else []
    return [0, 1, 2, 3, 7, 64, 100, ends.max, ends.max - 1, ends.min, ends.min + 1, *below]


def _compare(folder: Path, operators: Operators, *args: torch.Tensor) -> None:
    class Every(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(operator(*given) for operator in operators.values())

    got = by_every_stage(export(folder / "m.pt2", Every(), *args))([to_numpy(each, None) for each in args])
    told = []
    for name, ours, theirs in zip(operators, got, Every()(*args), strict=True):
        wanted = to_numpy(theirs, None)
        assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape), name
        wrong = ~_same(ours, wanted, signed=name not in EITHER_ZERO)
        for at in np.flatnonzero(wrong)[:2]:
            told.append(f"{name}: {[each[at].item() for each in args]} {ours[at]} {wanted[at]}")
    assert not told, "\n".join(told)


def _same(ours: Any, wanted: Any, *, signed: bool) -> Any:
    """Equal, both NaN, or a rounding apart; what is about the least normal number may be 0."""
    if wanted.dtype.kind in "biu":
        return ours == wanted
    name = wanted.dtype.name
    tiny = 2 * float(torch.finfo(FLOATS[name]).tiny)
    ours, wanted = ours.astype("float64"), wanted.astype("float64")
    close = np.isclose(ours, wanted, RELATIVE[name], tiny, equal_nan=True)
    zeros = (ours == 0) & (wanted == 0) & signed
    return close & ~(zeros & (np.signbit(ours) != np.signbit(wanted)))


def _pairs(dtype: torch.dtype, first: Sequence[Any], second: Sequence[Any]) -> list[torch.Tensor]:
    return [torch.tensor(each, dtype=dtype) for each in zip(*itertools.product(first, second), strict=True)]


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("name", FLOATS)
def test_functions_of_a_float(tmp_path: Path, name: str) -> None:
    _compare(tmp_path, OF_ONE_FLOAT, torch.tensor(_floats(FLOATS[name]), dtype=FLOATS[name]))


@pytest.mark.sampled("float32", "bfloat16")
@pytest.mark.parametrize("name", FLOATS)
def test_casts_of_what_integers_have_not(tmp_path: Path, name: str) -> None:
    """As x86 has them: the last bits of an int32, which is the least where that has it not either."""
    values = [*_floats(FLOATS[name]), 300.7, -300.7, 129.0, -129.0, 255.5, 40000.0, -40000.0]
    casts: Operators = {str(dtype): lambda x, dtype=dtype: x.to(dtype) for dtype in INTEGERS.values()}
    _compare(tmp_path, casts, torch.tensor(values, dtype=FLOATS[name]))


@pytest.mark.sampled("float32")
@pytest.mark.parametrize("name", FLOATS)
def test_functions_of_two_floats(tmp_path: Path, name: str) -> None:
    exact = {} if FLOATS[name].itemsize == 2 else OF_SUMS
    values = _floats(FLOATS[name])
    _compare(tmp_path, {**OF_TWO_FLOATS, **exact}, *_pairs(FLOATS[name], values, values))


@pytest.mark.sampled("float32", "bfloat16")
@pytest.mark.parametrize("name", FLOATS)
def test_remainders_of_floats(tmp_path: Path, name: str) -> None:
    """But by what is so small that torch's own vectors have NaN."""
    values = [x for x in _floats(FLOATS[name]) if abs(x) in (INF, 0.0) or not (abs(x) < 1e-4 or abs(x) > 1e5)]
    _compare(tmp_path, FLOORS, *_pairs(FLOATS[name], values, values))


@pytest.mark.sampled("int64", "uint8")
@pytest.mark.parametrize("name", INTEGERS)
def test_functions_of_an_integer(tmp_path: Path, name: str) -> None:
    _compare(tmp_path, OF_ONE_INTEGER, torch.tensor(_integers(INTEGERS[name]), dtype=INTEGERS[name]))


@pytest.mark.sampled("int64", "int8")
@pytest.mark.parametrize("name", INTEGERS)
def test_functions_of_two_integers(tmp_path: Path, name: str) -> None:
    dtype, values = INTEGERS[name], _integers(INTEGERS[name])
    _compare(tmp_path, OF_TWO_INTEGERS, *_pairs(dtype, values, values))


@pytest.mark.sampled("int64", "int8")
@pytest.mark.parametrize("name", INTEGERS)
def test_quotients_of_integers(tmp_path: Path, name: str) -> None:
    """But the least by -1, which stops torch's process, and by 0, which it refuses."""
    dtype, values = INTEGERS[name], _integers(INTEGERS[name])
    least = torch.iinfo(dtype).min
    pairs = [(x, y) for x, y in itertools.product(values, values) if y and (x, y) != (least, -1)]
    _compare(tmp_path, QUOTIENTS, *(torch.tensor(each, dtype=dtype) for each in zip(*pairs, strict=True)))


@pytest.mark.sampled("int64", "int8")
@pytest.mark.parametrize("name", INTEGERS)
def test_shifts_and_powers_of_integers(tmp_path: Path, name: str) -> None:
    dtype = INTEGERS[name]
    ends = torch.iinfo(dtype)
    by = [0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 65, 100, *([-1, -2, ends.min] if ends.min < 0 else [200, 255])]
    by += [130, 200, 500, 2**30] if ends.bits > 16 else []
    operators = {**_named(torch.pow), "<<": lambda x, y: x << y, ">>": lambda x, y: x >> y}
    _compare(tmp_path, operators, *_pairs(dtype, _integers(dtype), by))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_an_output_that_is_the_state_stays_as_it_was(dtype: torch.dtype) -> None:
    state = torch.ones(3).to(dtype)
    array = to_numpy(state, None)
    state.zero_()
    assert (array.astype(np.float32) == 1).all()
