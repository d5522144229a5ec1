"""Products of operands in e4m3: recognized with their scales, and equal to what the floats gave."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.layout.bytes_by_columns import BytesByColumns
from relaxc.service.passes.recognize.recognize_float8_products import RecognizeFloat8Products
from relaxc.service.passes.simplify.fold_scale import FoldScale
from tests.passes.graphs import assert_unchanged, graph, ops

FP8 = "float8_e4m3fn"
DRAW = np.random.default_rng(0)
WEIGHTS = DRAW.standard_normal((32, 16)).astype(ml_dtypes.float8_e4m3fn)
ZERO = relax.const(0, "int32")
PASS = RecognizeFloat8Products(lambda depth, columns: True)


def product(x, *, left=0.5, right=0.25, axis: int = 1, turned: bool = False):
    a = op.dequantize(x, relax.const(left, "float32"), ZERO, axis=0, out_dtype="float32")
    weights = WEIGHTS.T if turned else WEIGHTS
    scale = relax.const(right, "float32") if np.isscalar(right) else relax.const(right)
    b = op.dequantize(constant(np.ascontiguousarray(weights)), scale, ZERO, axis=axis, out_dtype="float32")
    return op.matmul(a, op.permute_dims(b, [1, 0]) if turned else b)


@pytest.mark.parametrize("left", [0.5, np.linspace(0.1, 1, 8, dtype="float32")], ids=["a scale", "a scale a row"])
@pytest.mark.parametrize("right", [0.25, np.linspace(0.1, 1, 16, dtype="float32")], ids=["a scale", "a scale a column"])
@pytest.mark.parametrize("turned", [False, True])
def test_products_are_of_8_bits_and_scaled(left, right, turned: bool) -> None:
    found = PASS(
        graph(lambda x: product(x, left=left, right=right, axis=0 if turned else 1, turned=turned), x=(FP8, (8, 32)))
    )
    assert "dequantize" not in ops(found) and "matmul" in ops(found)
    calls = [b.value for b in found["main"].body.blocks[0].bindings]
    matmul = next(call for call in calls if getattr(getattr(call, "op", None), "name", "") == "relax.matmul")
    assert [str(arg.ty.dtype) for arg in matmul.args] == [FP8, FP8] and str(matmul.ty.dtype) == "float32"
    assert "matmul" not in ops(BytesByColumns()(found)), "the weights are turned"


def test_what_stays() -> None:
    scales = np.linspace(0.1, 1, 32, dtype="float32")
    assert_unchanged(graph(lambda x: product(x, right=scales, axis=0), x=(FP8, (8, 32))), PASS)
    assert_unchanged(graph(product, x=(FP8, (8, 32))), RecognizeFloat8Products(lambda depth, columns: False))
    assert_unchanged(graph(product, x=("int8", (8, 32))), PASS)


def test_scales_stay_out_of_weights_of_8_bits() -> None:
    found = PASS(graph(product, x=(FP8, (8, 32))))
    assert_unchanged(found, FoldScale())
