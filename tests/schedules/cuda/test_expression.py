"""Expressions as text: what a condition guards is not read before it, and GELU has a shorter form."""

from __future__ import annotations

import pytest
from tvm import tirx

from relaxc.schedules.cuda.common.expression import Pair, Unsupported, Writer


def test_an_operand_that_a_condition_guards_is_not_read_before_it() -> None:
    """`n < 4 ? padded[n] : 0` would read beyond a `padded` of four elements: loads come before the expression."""
    padded, column = tirx.decl_buffer((4,), "float32", name="padded"), tirx.Var("n", "int32")
    writer = Writer({column: Pair("n", "(n + 1)")}, column, lambda load: None, lambda load: False, fast=False)
    guarded = tirx.if_then_else(column < 4, padded[column], tirx.const(0.0, "float32"))
    with pytest.raises(Unsupported, match="where a condition allows it"):
        writer.write(guarded)
    unguarded = tirx.if_then_else(column < 4, tirx.const(1.0, "float32"), tirx.const(0.0, "float32"))
    assert writer.write(unguarded).x.startswith("((n < 4) ? ")


@pytest.mark.parametrize(
    ("fast", "half", "text"), [(True, 0.5, "gelu_fast(sums.x)"), (True, 0.25, "tanh_fast"), (False, 0.5, "tanhf")]
)
def test_gelu_by_tanh_is_one_function_where_its_result_has_16_bits(fast: bool, half: float, text: str) -> None:
    sums, column = tirx.decl_buffer((8,), "float32", name="sums"), tirx.Var("n", "int32")
    x = sums[column]

    def times(*factors: object) -> object:
        made = x
        for factor in factors:
            made = made * (tirx.const(factor, "float32") if isinstance(factor, float) else factor)
        return made

    one = tirx.const(1.0, "float32")
    inner = times(0.7978845608028654, one + times(0.044715, x))
    writer = Writer({column: Pair("n", "(n + 1)")}, column, lambda load: None, lambda load: True, fast=fast)
    found = writer.write(times(half, one + tirx.tanh(inner)))
    assert text in found.x and (found.y == "gelu_fast(sums.y)") == text.startswith("gelu")
    assert writer.expensive


_SUM, _BYTE, _WIDE = (tirx.decl_buffer((8,), dtype)[tirx.Var("n", "int32")] for dtype in ("int32", "int8", "int64"))


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (tirx.floordiv(_SUM, 4), "floor_div<int>(sums.x, 4)"),
        (tirx.floormod(_SUM, 4), "floor_mod<int>(sums.x, 4)"),
        (_BYTE + _BYTE, "(signed char)(sums.x + sums.x)"),
        (tirx.Max(_WIDE, tirx.const(3, "int64")), "max((long long)(sums.x), (long long)(3))"),
    ],
    ids=["a sum may be negative", "its remainder", "C adds bytes as ints", "of one type"],
)
def test_integers_are_computed_as_tir_has_them(expr: object, text: str) -> None:
    column = tirx.Var("n", "int32")
    writer = Writer({column: Pair("n", "(n + 1)")}, column, lambda load: None, lambda load: True, fast=False)
    assert writer.write(expr).x == text


def _quantized(value: object, scale: object, zero: object) -> object:
    """As `legalize_quantized` writes it."""
    moved = tirx.nearbyint(value if scale is None else value / scale) + zero.astype("float32")
    low, high = (tirx.const(float(limit), "float32") for limit in (0, 255))
    return tirx.Min(tirx.Max(moved, low), high).astype("uint8")


@pytest.mark.parametrize("same_zero", [True, False])
def test_what_is_dequantized_at_once_stays_a_float(same_zero: bool) -> None:
    """Without the byte between: where both have one zero point."""
    column, none = tirx.Var("n", "int32"), tirx.const(0, "int32")
    sums, scale = tirx.decl_buffer((8,), "float32"), tirx.decl_buffer((1,), "float32")
    stored, zero, other = (tirx.decl_buffer((size,), "uint8") for size in (8, 1, 1))

    def inner(load: object) -> object | None:
        if not load.source.same_as(stored):
            return None
        return _quantized(sums[load.indices[0]], scale[none], zero[none])

    less = (zero if same_zero else other)[none]
    steps = (stored[column].astype("int32") - less.astype("int32")).astype("float32")
    is_sum = lambda load: load.source.same_as(sums)  # noqa: E731
    writer = Writer({column: Pair("n", "(n + 1)")}, column, inner, is_sum, fast=False)
    text = writer.write(steps * scale[none]).x
    assert ("quantized_steps(sums.x" in text) is same_zero
    assert ("byte_less(" in text) is not same_zero


def test_a_scale_of_one_is_no_quotient() -> None:
    column, sums = tirx.Var("n", "int32"), tirx.decl_buffer((8,), "float32")
    zero = tirx.decl_buffer((1,), "uint8")[tirx.const(0, "int32")]
    is_sum = lambda load: load.source.same_as(sums)  # noqa: E731
    writer = Writer({column: Pair("n", "(n + 1)")}, column, lambda load: None, is_sum, fast=False)
    assert writer.write(_quantized(sums[column], None, zero)).x == "quantized(sums.x, v0, 0, 255)"


def test_neighbouring_bytes_are_loaded_at_once() -> None:
    column, operand, zero = tirx.Var("n", "int32"), tirx.decl_buffer((8,), "int8"), tirx.decl_buffer((1,), "int8")
    writer = Writer({column: Pair("n", "(n + 1)")}, column, lambda load: None, lambda load: False, fast=False)
    steps = operand[column].astype("int32") - zero[tirx.const(0, "int32")].astype("int32")
    found = writer.write(steps.astype("float32"))
    assert any("load_two<signed char>(operands.p0, n)" in line for line in writer.statements)
    assert found.x.startswith("byte_less(") and ".y" in found.y
