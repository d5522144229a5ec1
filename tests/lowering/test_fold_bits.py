"""The bits of literals are literals, and null pointers stay."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import te, tirx

from relaxc.service.lowering.fold_bits import FoldBits


def rewritten(value: Any) -> Any:
    """The value of a PrimFunc behind the pass."""
    made = tirx.PrimFunc([], tirx.Evaluate(value))
    return FoldBits()(tvm.IRModule({"main": made}))["main"].body.value


def bits(dtype: str, value: Any) -> Any:
    return tirx.reinterpret(dtype, value)


@pytest.mark.parametrize("number", [0, 7, -1])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_bits_of_a_literal_are_one(dtype: str, number: int) -> None:
    literal = tirx.const(number, dtype)
    hidden = bits(dtype, bits(f"u{dtype}", literal))
    stays = number < 0 and dtype == "int64"
    tvm.ir.assert_structural_equal(rewritten(hidden), hidden if stays else literal)


def test_zero_is_one_of_floats_too_and_others_stay() -> None:
    tvm.ir.assert_structural_equal(rewritten(bits("float32", tirx.const(0, "int32"))), tirx.const(0.0, "float32"))
    word = tirx.const(0, "uint64")
    for value in (bits("int64", te.var("x", "uint64")), bits("handle", word), bits("float32", tirx.const(1, "int32"))):
        tvm.ir.assert_structural_equal(rewritten(value), value)
