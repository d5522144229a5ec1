"""Products of the same bytes become one, with constants by column, and compute the same bits."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.layout.hoist_quantization import HoistQuantization
from relaxc.service.passes.simplify.merge_quantized_matmuls import MergeQuantizedMatmuls
from tests.passes.graphs import TARGET, assert_unchanged, compute, graph, operators
from tests.passes.quantized import data, projected

X = ("uint8", (2, 9, 16))


def merged(module: tvm.IRModule) -> tvm.IRModule:
    with TARGET:
        return relax.transform.DeadCodeElimination()(MergeQuantizedMatmuls()(HoistQuantization()(module)))


def three(x: relax.Expr) -> tuple[relax.Expr, ...]:
    """The last without a factor, as one that was divided by its scale at compile time."""
    return tuple(projected(x, seed, scaled=seed < 3, zero=110 + seed) for seed in (1, 2, 3))


def test_three_products_are_one_to_the_bit() -> None:
    module = graph(three, x=X)
    changed = merged(module)
    assert operators(changed).count("matmul") == 1 and operators(changed).count("strided_slice") == 3
    for got, want in zip(compute(changed, data()), compute(module, data()), strict=True):
        np.testing.assert_array_equal(got, want)


def test_products_whose_steps_differ_stay() -> None:
    def net(x: relax.Expr) -> tuple[relax.Expr, ...]:
        emit = relax.BlockBuilder.current().emit
        weight = constant(np.random.default_rng(5).integers(-127, 128, (16, 16)).astype("int8"))
        plain = emit(op.astype(emit(op.matmul(x, weight, "int32")), "float16"))
        return projected(x, 1), emit(op.permute_dims(plain, [0, 2, 1]))

    module = HoistQuantization()(graph(net, x=X))
    assert_unchanged(module, MergeQuantizedMatmuls())


def test_a_result_that_is_not_moved_by_heads_stays_apart() -> None:
    """A slice would be a kernel there."""

    def net(x: relax.Expr) -> tuple[relax.Expr, ...]:
        emit = relax.BlockBuilder.current().emit
        return tuple(emit(op.nn.relu(projected(x, seed))) for seed in (1, 2))

    assert_unchanged(graph(net, x=X), MergeQuantizedMatmuls())
