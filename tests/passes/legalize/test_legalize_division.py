"""A division by the constant 0 gives what IEEE 754 says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from service.passes.common.constants import constant
from service.passes.legalize.legalize import Legalize
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
