"""A division by the constant 0 gives what IEEE 754 says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.legalize.legalize import Legalize
from tests.passes.graphs import compute, graph


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_by_a_constant_zero(zero: float, dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x = np.array([-2, -0.0, 0, 3, np.inf, -np.inf, np.nan], kind)
    module = graph(lambda x: relax.op.divide(x, constant(np.float32(zero).astype(kind), dtype)), x=(dtype, x.shape))
    (got,) = compute(Legalize([])(module), x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got.astype("float64"), (x / np.array(zero, kind)).astype("float64"))


def test_by_another_constant() -> None:
    module = graph(lambda x: relax.op.divide(x, constant(np.float32(2))), x=(3,))
    (got,) = compute(Legalize([])(module), np.arange(3, dtype="float32"))
    assert got.tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("name", ["floor_divide", "floor_mod"])
def test_of_integers_by_what_stops_a_cpu(name: str, dtype: str) -> None:
    ends = np.iinfo(dtype)
    x = np.array([ends.min, ends.max, 7, 5, 9], dtype)
    y = np.array([-1 if ends.min < 0 else 3, 0, -1 if ends.min < 0 else 2, 2, 0], dtype)
    module = graph(lambda x, y: getattr(relax.op, name)(x, y), x=(dtype, x.shape), y=(dtype, y.shape))
    (got,) = compute(Legalize([])(module), x, y)
    with np.errstate(over="ignore"):
        safe = np.where(y == 0, 1, y).astype(dtype)
        want = getattr(np, name.replace("floor_mod", "mod"))(x, safe)
        want[0] = (ends.min if name == "floor_divide" else 0) if ends.min < 0 else want[0]
    np.testing.assert_array_equal(got, want)


def test_of_integers_by_one_number_of_a_tensor() -> None:
    """The divisor is repeated."""
    shapes = {"x": ("int32", (2, 3)), "y": ("int32", (2, 1))}
    module = graph(lambda x, y: relax.op.floor_divide(x, y), **shapes)
    x, y = np.arange(6, dtype="int32").reshape(2, 3), np.array([[0], [-1]], "int32")
    (got,) = compute(Legalize([])(module), x, y)
    assert got.tolist() == [[0, 1, 2], [-3, -4, -5]]
