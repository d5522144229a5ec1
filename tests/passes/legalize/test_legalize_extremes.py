"""Maxima and minima of what is infinite: TVM's begin at the last finite number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, topi
from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, compute, graph

SHAPE = (2, 3, 6, 20)
CASES: dict[str, Callable[[Any], Any]] = {
    "all": op.max,
    "first axes": lambda x: op.max(x, [0, 1]),
    "last axis": lambda x: op.max(x, -1, keepdims=True),
    "two axes": lambda x: op.max(x, [1, 3]),
    "windows": lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2)),
    "padded windows": lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)),
    "windows in lines": lambda x: op.nn.max_pool1d(op.reshape(x, (6, 6, 20)), 3, 1, 1),
    "windows of any size": lambda x: relax.BlockBuilder.current().emit_te(
        topi.nn.adaptive_pool, x, [3, 2], "max", "NCHW", primfunc_attrs={"relaxc.extreme": True}
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_the_largest_of_minus_infinity_is_minus_infinity(name: str, dtype: str) -> None:
    got = compute(graph(CASES[name], x=(dtype, SHAPE)), np.full(SHAPE, -np.inf, dtype))[0]
    assert (got == -np.inf).all()


@pytest.mark.parametrize("axes", [None, [0], [3], [1, 3]], ids=str)
def test_the_smallest_of_infinity_is_infinity(axes: Any) -> None:
    got = compute(graph(lambda x: op.min(x, axes), x=SHAPE), np.full(SHAPE, np.inf, "float32"))[0]
    assert (got == np.inf).all()


def test_integers_begin_at_the_last_number() -> None:
    lowest = np.full(SHAPE, -128, "int8")
    assert (compute(graph(lambda x: op.max(x, [3]), x=("int8", SHAPE)), lowest)[0] == -128).all()


def test_what_a_softmax_subtracts_is_finite() -> None:
    optimized = optimize(graph(lambda x: op.nn.softmax(x, -1), x=(4, 40)), TARGET, CompileOptions())
    assert "inf" not in optimized.module.script()
