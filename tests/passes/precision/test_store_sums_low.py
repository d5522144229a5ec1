"""The residual stream of a quantized network is stored in 16 bits where `--precision` says so."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.precision.store_sums_low import StoreSumsLow
from tests.passes.graphs import TARGET, assert_unchanged, compute, graph, operators, random, weights
from tests.passes.quantized import data


def stream(x: relax.Expr, residual: relax.Expr) -> tuple[relax.Expr, ...]:
    emit = relax.BlockBuilder.current().emit
    weight = constant(np.random.default_rng(0).integers(-127, 128, (16, 16)).astype("int8"))
    wide = emit(op.astype(emit(op.matmul(x, weight, "int32")), "float32"))
    total = emit(op.add(emit(op.multiply(wide, relax.const(1e-3, "float32"))), residual))
    return emit(op.nn.layer_norm(total, weights(16), weights(16, seed=1), [-1])), emit(op.nn.relu(total))


def test_a_norm_reads_the_sum_in_16_bits() -> None:
    module = graph(stream, x=("uint8", (2, 9, 16)), residual=(2, 9, 16))
    with TARGET:
        changed = relax.transform.DeadCodeElimination()(StoreSumsLow("float16")(module))
    norm = next(f for var, f in changed.functions_items() if str(var.name_hint) == "layer_norm")
    assert str(norm.params[0].dtype) == "float16" and operators(changed).count("astype") >= 2
    given = data(), random(2, 9, 16)
    for got, want in zip(compute(changed, *given), compute(module, *given), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)
        assert not np.array_equal(got, want)


def test_sums_of_floats_stay() -> None:
    def net(x: relax.Expr, residual: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        total = emit(op.add(emit(op.matmul(x, weights(16, 16))), residual))
        return op.nn.layer_norm(total, weights(16), weights(16, seed=1), [-1])

    assert_unchanged(graph(net, x=(2, 9, 16), residual=(2, 9, 16)), StoreSumsLow("float16"))
