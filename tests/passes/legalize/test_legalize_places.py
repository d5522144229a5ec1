"""Places of maxima and minima where all numbers are the last of their dtype, and where one is NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from relaxc.service.passes.legalize.legalize import Legalize
from tests.passes.graphs import compute, graph

SHAPE = (2, 3, 20)
NUMPYS = {"argmax": np.argmax, "argmin": np.argmin}


def place(kind: str, x: Any, axis: int | None, *, keep: bool = False) -> Any:
    function = getattr(op, kind)
    return compute(graph(lambda x: function(x, axis, keep), x=(str(x.dtype), x.shape)), x)[0]


@pytest.mark.parametrize("kind", NUMPYS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int64"])
def test_numbers_that_are_all_the_last_one_have_a_place(dtype: str, kind: str) -> None:
    ends = (-np.inf, np.inf) if dtype.startswith("f") else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.full(SHAPE, ends[kind == "argmin"], dtype)
    assert (place(kind, x, -1) == 0).all()


@pytest.mark.parametrize("kind", NUMPYS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int32"])
def test_by_keys_they_are_the_same(dtype: str, kind: str) -> None:
    x = np.random.default_rng(0).integers(0, 4, (3, 5, 20)).astype(dtype)
    if dtype.startswith("f"):
        x[x == 0] = -0.0
        x -= 2
        x[0, 1, 3], x[1, 2, 4:9], x[2, 0] = np.inf, -np.inf, np.nan
        x[1, 3, 2] = 0.0
    module = graph(lambda x: getattr(op, kind)(x, 1), x=(dtype, x.shape))
    made = Legalize([], by_keys=True)(module)
    np.testing.assert_array_equal(compute(made, x)[0], NUMPYS[kind](x, 1))


@pytest.mark.parametrize("kind", NUMPYS)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_of_nan_it_is_the_first(axis: int | None, keep: bool, kind: str) -> None:
    x = np.round(np.random.default_rng(0).standard_normal(SHAPE)).astype("float32")
    want = NUMPYS[kind]
    np.testing.assert_array_equal(place(kind, x, axis, keep=keep), want(x, axis, keepdims=keep))
    x[1, 1, 4:7:2] = x[0, 2, 3] = np.nan
    np.testing.assert_array_equal(place(kind, x, axis, keep=keep), want(x, axis, keepdims=keep))
