"""Quantized constant weights of products become codes in blocks, whatever way they are laid out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from relaxc.service.passes.common.block_weights import BlockWeights
from relaxc.service.passes.recognize.recognize_block_weights import RecognizeBlockWeights
from relaxc.service.passes.simplify.fold_constants import FoldConstants
from tests.passes.graphs import assert_unchanged, compute, graph

R = relax.op
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def const(array: Any) -> relax.Expr:
    return relax.const(np.asarray(array))


def codes(dtype: str, low: int, high: int, *shape: int) -> Array:
    made = RNG.integers(low, high, shape)
    made.flat[0], made.flat[-1] = low, high - 1
    return made.astype(dtype)


def scales(count: int) -> Array:
    return RNG.uniform(0.5, 2, count).astype("float32")


K, N, B = 24, 10, 8
COUNT = K * N // B


def blocks(dtype: str, low: int, high: int, zero: Any) -> Any:
    """`[N, K]` in blocks, turned."""
    wide = R.dequantize(const(codes(dtype, low, high, COUNT, B)), const(scales(COUNT)), const(zero), axis=0)
    return R.permute_dims(R.reshape(wide, (N, K)), [1, 0])


def columns(dtype: str, low: int, high: int, zero: Any) -> Any:
    return R.dequantize(const(codes(dtype, low, high, K, N)), const(scales(N)), const(zero), axis=1)


def turned(dtype: str, low: int, high: int, zero: Any) -> Any:
    wide = R.dequantize(const(codes(dtype, low, high, N, K)), const(scales(N)), const(zero), axis=0)
    return R.permute_dims(wide, [1, 0])


FORMS = {
    "uint4 blocks": (blocks, ("uint8", 0, 16, np.uint8(8)), 4, B, False),
    "uint4 blocks with zeros": (blocks, ("uint8", 0, 16, codes("uint8", 0, 16, COUNT)), 4, B, True),
    "int4 blocks": (blocks, ("int8", -8, 8, np.int8(0)), 4, B, False),
    "int8 blocks": (blocks, ("int8", -128, 128, codes("int8", -128, 128, COUNT)), 8, B, True),
    "int8 columns": (columns, ("int8", -128, 128, np.int8(0)), 8, K, False),
    "int8 columns, a zero for each": (columns, ("int8", -128, 128, np.zeros(N, "int8")), 8, K, False),
    "uint8 columns": (columns, ("uint8", 0, 256, codes("uint8", 0, 256, N)), 8, K, True),
    "int4 rows, turned": (turned, ("int8", -8, 8, np.int32(0)), 4, K, False),
}


@pytest.mark.parametrize("form", FORMS)
def test_codes_in_blocks(form: str) -> None:
    build, arguments, bits, block, has_zeros = FORMS[form]
    seen: list[BlockWeights] = []

    def takes(rows: int, weights: BlockWeights) -> bool:
        seen.append(weights)
        return rows == 3

    module = graph(lambda x: R.matmul(x, build(*arguments)), x=(3, K))
    kept = RecognizeBlockWeights(takes)(module)
    (found,) = seen
    assert (found.bits, found.block, found.own_zeros is not None) == (bits, block, has_zeros)
    assert "dequantize_blocks" in str(kept) and "relax.dequantize" not in str(kept)
    x = RNG.standard_normal((3, K)).astype("float32")
    want = compute(module, x)
    np.testing.assert_allclose(compute(kept, x), want, rtol=1e-6, atol=1e-6 * np.abs(want[0]).max())
    np.testing.assert_allclose(x @ found.dequantized(), want[0], rtol=1e-5, atol=1e-5)
    assert "dequantize_blocks" in str(FoldConstants()(kept)), "it stays quantized where constants are folded"
    assert RecognizeBlockWeights(takes)(kept).same_as(kept)


def test_what_no_template_takes_is_left_to_be_folded() -> None:
    module = graph(lambda x: R.matmul(x, columns("int8", -8, 8, np.int8(0))), x=(3, K))
    assert_unchanged(module, RecognizeBlockWeights(lambda rows, weights: False))


def test_scales_of_rows_of_the_depth_are_in_blocks_of_one() -> None:
    """Each step of the depth has its own: there is no block to speak of, and templates decline it by that."""
    wide = R.dequantize(const(codes("int8", -8, 8, K, N)), const(scales(K)), const(np.int8(0)), axis=0)
    found: list[int] = []
    RecognizeBlockWeights(lambda rows, weights: bool(found.append(weights.block)))(
        graph(lambda x: R.matmul(x, wide), x=(3, K))
    )
    assert found == [1]


@pytest.mark.parametrize("zero", [np.int32(-200), np.int32(300)])
def test_a_zero_point_that_is_no_code_is_left(zero: Any) -> None:
    module = graph(lambda x: R.matmul(x, columns("int8", -8, 8, zero)), x=(3, K))
    assert_unchanged(module, RecognizeBlockWeights(lambda rows, weights: True))
