"""FastMath: Before and Expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.precision.fast_math import FastMath
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, assert_becomes, assert_unchanged, compute, graph, random, run


def number(value: float, dtype: str = "float32") -> Any:
    return constant(np.array(value), dtype)


REWRITTEN = {
    "by a constant": (lambda x: op.divide(x, number(4)), lambda x: op.multiply(x, number(0.25))),
    "by a root": (lambda x: op.divide(x, op.sqrt(x)), lambda x: op.multiply(x, op.rsqrt(x))),
    "a root": (lambda x: op.power(x, number(0.5)), op.sqrt),
    "an inverse root": (lambda x: op.power(x, number(-0.5)), op.rsqrt),
    "an inverse": (lambda x: op.power(x, number(-1)), lambda x: op.divide(number(1), x)),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    before, after = REWRITTEN[name]
    given = graph(before, x=("n", 4))
    assert_becomes(given, FastMath(), graph(after, x=("n", 4)))
    x = np.abs(random(3, 4)) + 0.1
    got = run(optimize(given, TARGET, CompileOptions(opt_level=3)), x)[0]
    np.testing.assert_allclose(got, compute(given, x)[0], rtol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.divide(x, number(0)),
        lambda x: op.divide(x, number(1e-45)),
        lambda x: op.divide(x, number(np.inf)),
        lambda x: op.divide(number(1), x),
        lambda x: op.power(x, number(3)),
    ],
)
def test_kept(build: Any) -> None:
    assert_unchanged(graph(build, x=(2, 4)), FastMath())


def test_other_dtypes_are_kept() -> None:
    assert_unchanged(graph(lambda x: op.divide(x, number(3, "float64")), x=("float64", (2,))), FastMath())
