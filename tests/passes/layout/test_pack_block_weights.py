"""Products with codes in blocks: computed by the template for a few rows, in floats for many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relaxc.schedules.plan import plan_of
from relaxc.service.passes.common.block_weights import BlockWeights
from relaxc.service.passes.layout.pack_block_weights import PackBlockWeights
from relaxc.service.passes.recognize.recognize_block_weights import RecognizeBlockWeights
from tests.passes.graphs import compute, graph
from tests.passes.layout.blocked import CPU
from tests.passes.layout.test_pack_matmul import compiled

R = relax.op
Array = np.ndarray[Any, Any]


def product(depth: int, columns: int, block: int, bits: int, *, zeros: bool) -> tuple[Any, Array]:
    """What multiplies its argument with quantized weights, and these."""
    rng = np.random.default_rng([depth, columns])
    codes = rng.integers(0, 1 << bits, (columns * depth // block, block)).astype("uint8")
    scales = rng.uniform(0.01, 0.02, len(codes)).astype("float32")
    zero = rng.integers(0, 1 << bits, len(codes)).astype("uint8") if zeros else np.uint8(1 << bits - 1)
    wide = (codes.astype("float64") - np.reshape(zero, (-1, 1))) * scales[:, None]

    def build(x: Any) -> Any:
        steps = R.dequantize(*map(relax.const, (codes, scales, zero)), axis=0)
        return R.nn.relu(R.matmul(x, R.permute_dims(R.reshape(steps, (columns, depth)), [1, 0])))

    return build, wide.reshape(columns, depth).T


@pytest.mark.sampled(most=12)
@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "auto"])
@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, False), (8, True)])
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "block"), [((1,), 96, 130, 32), ((2, 3), 64, 20, 16), ((8,), 1024, 33, 1024)]
)
def test_a_few_rows_are_computed_from_codes(
    rows: tuple[int, ...], depth: int, columns: int, block: int, bits: int, zeros: bool, target: str
) -> None:
    build, weights = product(depth, columns, block, bits, zeros=zeros)
    x = np.random.default_rng(1).standard_normal((*rows, depth)).astype("float32")
    got, report, plans = compiled(graph(build, x=(*rows, depth)), target, x)
    assert [row["rule"] for row in report] == ["cpu.matmul_blocks"]
    [plan] = plans
    assert plan.operator.block <= 256
    want = np.maximum(x.astype("float64") @ weights, 0)
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-6 * np.abs(want).max())


def test_many_rows_are_packed_in_floats() -> None:
    build, weights = product(64, 50, 32, 4, zeros=False)
    x = np.random.default_rng(1).standard_normal((20, 64)).astype("float32")
    got, report, _ = compiled(graph(build, x=(20, 64)), "auto", x)
    assert [row["rule"] for row in report] == ["cpu.matmul_packed"]
    want = np.maximum(x @ weights, 0)
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-6 * np.abs(want).max())


def test_weights_that_are_not_taken_after_all_become_floats() -> None:
    """Rows may have become too many on the way."""
    build, weights = product(64, 50, 32, 4, zeros=True)
    module = RecognizeBlockWeights(lambda rows, found: True)(graph(build, x=(20, 64)))
    packed = PackBlockWeights(CPU)(module)
    assert not [f for f in packed.functions.values() if isinstance(f, tvm.tirx.PrimFunc) and plan_of(f)]
    x = np.random.default_rng(1).standard_normal((20, 64)).astype("float32")
    np.testing.assert_allclose(compute(packed, x)[0], np.maximum(x @ weights, 0), rtol=0, atol=1e-4)


def test_blocks_are_split_and_their_scales_repeated() -> None:
    weights = BlockWeights(np.full((3, 768), 9, "uint8"), np.float32([[1], [2], [3]]), np.uint8([[8]]))
    split = weights.in_blocks(256)
    assert split.block == 256 and split.scales.shape == (3, 3)
    np.testing.assert_array_equal(split.dequantized(), weights.dequantized())
