"""nonzero in kernels of ours, and what has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op

from relaxc.service.errors import UnsupportedModel
from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, compute, graph

GPU = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host=TARGET)

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "uint8", "int64", "float16"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1, 1), (0, 4)])
def test_nonzero_is_numpys(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    found = compute(graph(op.nonzero, x=(dtype, shape)), x)[0]
    np.testing.assert_array_equal(found, np.stack(x.nonzero()))
    assert found.dtype == np.int64


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, -0.0])
def test_nonzero_of_equal_values(value: float) -> None:
    x = np.full((2, 3), value, np.float32)
    np.testing.assert_array_equal(compute(graph(op.nonzero, x=(2, 3)), x)[0], np.stack(x.nonzero()))


def test_nonzero_of_symbolic_sizes() -> None:
    x = np.random.default_rng(2).integers(0, 2, (5, 3, 9)).astype(np.float32)
    np.testing.assert_array_equal(compute(graph(op.nonzero, x=("a", 3, "b")), x)[0], np.stack(x.nonzero()))


@pytest.mark.parametrize(("name", "target"), [("unique", TARGET), ("nonzero", GPU)])
def test_what_only_python_computes_is_refused_by_name(name: str, target: Any) -> None:
    with pytest.raises(UnsupportedModel, match=rf"no kernel can be made for these operators: {name} \(1\)"):
        optimize(graph(getattr(op, name), x=(8,)), target, CompileOptions())
