"""Expressions as text: what a condition allows to be read is not read without it."""

from __future__ import annotations

import pytest
from tvm import tirx

from schedules.cuda.common.expression import Pair, Unsupported, Writer


def test_an_operand_that_a_condition_guards_is_not_read_before_it() -> None:
    """`n < 4 ? padded[n] : 0` would read beyond a `padded` of four elements: loads come before the expression."""
    padded, column = tirx.decl_buffer((4,), "float32", name="padded"), tirx.Var("n", "int32")
    writer = Writer({column: Pair("n", "(n + 1)")}, column, lambda load: None, lambda load: False, fast=False)
    guarded = tirx.if_then_else(column < 4, padded[column], tirx.const(0.0, "float32"))
    with pytest.raises(Unsupported, match="where a condition allows it"):
        writer.write(guarded)
    unguarded = tirx.if_then_else(column < 4, tirx.const(1.0, "float32"), tirx.const(0.0, "float32"))
    assert writer.write(unguarded).x.startswith("((n < 4) ? ")
