"""Products with codes in blocks on CUDA: packed for a few rows of 16 bits, in floats for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from relaxc.service.passes.layout.stream_block_weights import StreamBlockWeights, takes
from relaxc.service.passes.recognize.recognize_block_weights import RecognizeBlockWeights
from relaxc.service.passes.simplify.fold_constants import FoldConstants
from tests.passes.graphs import compute, graph, ops
from tests.passes.layout.test_pack_block_weights import product


def low(build: Any) -> Any:
    """The product as `--precision` has it: operands in 16 bits, sums in fp32."""

    def built(x: Any) -> Any:
        return build(op.astype(x, "float32"))

    return built


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "block", "bits", "zeros"),
    [
        ((1,), 96, 34, 32, 4, True),
        ((2, 3), 128, 20, 64, 4, False),
        ((16,), 256, 18, 256, 8, True),
        ((3,), 64, 16, 64, 8, False),
    ],
)
def test_a_few_rows_are_computed_from_packed_codes(
    rows: tuple[int, ...], depth: int, columns: int, block: int, bits: int, zeros: bool
) -> None:
    build, weights = product(depth, columns, block, bits, zeros=zeros)
    module = RecognizeBlockWeights(takes)(graph(low(build), x=("float16", (*rows, depth))))
    packed = StreamBlockWeights()(module)
    assert "matmul" not in ops(packed)
    x = np.random.default_rng(1).standard_normal((*rows, depth)).astype("float16")
    want = np.maximum(x.astype("float64") @ weights, 0)
    np.testing.assert_allclose(compute(packed, x)[0], want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(("rows", "dtype"), [(17, "float16"), (4, "float32")])
def test_others_become_floats(rows: int, dtype: str) -> None:
    build, weights = product(64, 50, 32, 4, zeros=True)
    module = RecognizeBlockWeights(lambda rows, found: True)(graph(low(build), x=(dtype, (rows, 64))))
    left = FoldConstants()(StreamBlockWeights()(module))
    assert "matmul" in ops(left) and "call_tir" not in ops(left)
    x = np.random.default_rng(1).standard_normal((rows, 64)).astype(dtype)
    np.testing.assert_allclose(compute(left, x)[0], np.maximum(x @ weights, 0), rtol=0, atol=1e-4)


def test_blocks_that_no_step_has_whole_are_split() -> None:
    build, weights = product(288, 16, 96, 4, zeros=False)
    module = StreamBlockWeights()(RecognizeBlockWeights(takes)(graph(low(build), x=("float16", (2, 288)))))
    assert "matmul" not in ops(module)
    x = np.random.default_rng(1).standard_normal((2, 288)).astype("float16")
    want = np.maximum(x.astype("float64") @ weights, 0)
    np.testing.assert_allclose(compute(module, x)[0], want, rtol=0, atol=1e-5 * np.abs(want).max())
