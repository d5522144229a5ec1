"""What is stored in 16 bits between kernels of a GPU: roundings stay where kernels begin, and each reader widens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.precision.cancel_casts import CancelCasts
from relaxc.service.passes.precision.read_low import ReadLow
from relaxc.service.request import CompileOptions
from tests.passes.graphs import (
    TARGET,
    assert_becomes,
    assert_unchanged,
    compute,
    graph,
    operators,
    random,
    run,
    weights,
)

LOW = "float16"
HOPPER = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}, host=TARGET)
STORED = CancelCasts(stored=True)


def emit(value: Any) -> Any:
    return relax.BlockBuilder.current().emit(value)


def low(x: Any) -> Any:
    return emit(op.astype(x, LOW))


def wide(x: Any) -> Any:
    return emit(op.astype(x, "float32"))


def norm(x: Any) -> Any:
    return op.nn.layer_norm(x, constant(np.ones(8), "float32"), constant(np.zeros(8), "float32"), axes=-1)


def twice(x: Any) -> Any:
    y = low(op.exp(x))
    return op.add(op.abs(wide(y)), op.sin(wide(y)))


def before_a_norm(x: Any) -> Any:
    return norm(wide(low(op.exp(x))))


def before_a_sum(x: Any) -> Any:
    product = emit(op.matmul(x, weights(8, 8)))
    return op.add(wide(low(op.add(product, weights(8)))), op.abs(x))


@pytest.mark.parametrize("net", [twice, before_a_norm, before_a_sum])
def test_a_rounding_stays_where_kernels_begin(net: Any) -> None:
    assert_unchanged(graph(net, x=(2, 8)), STORED)


def test_a_rounding_goes_within_an_epilogue_and_before_a_softmax() -> None:
    def given(x: Any) -> Any:
        scores = op.add(wide(low(op.matmul(x, weights(8, 8)))), op.abs(x))
        return op.nn.softmax(op.multiply(wide(low(op.add(scores, relax.const(1.0)))), relax.const(2.0)))

    def expected(x: Any) -> Any:
        scores = op.add(op.matmul(x, weights(8, 8)), op.abs(x))
        return op.nn.softmax(op.multiply(op.add(scores, relax.const(1.0)), relax.const(2.0)))

    assert_becomes(graph(given, x=(2, 8)), STORED, graph(expected, x=(2, 8)))


def test_a_rounded_value_that_is_read_twice_is_not_sliced_in_fp32() -> None:
    def net(x: Any) -> Any:
        y = low(op.exp(x))
        halves = [wide(op.strided_slice(y, [1], [start], [start + 4], [1])) for start in (0, 4)]
        return op.abs(halves[0]), op.sin(halves[1])

    assert_unchanged(graph(net, x=(2, 8)), STORED)


def test_an_activation_in_many_operators_is_left_to_be_recognized() -> None:
    """The tanh GELU as transformers spells it: what it multiplies and adds are values of its own."""

    def net(x: Any) -> Any:
        y = emit(op.matmul(x, weights(8, 8, dtype=LOW)))
        cube = emit(op.power(y, constant(np.array(3.0), LOW)))
        inner = emit(
            op.multiply(
                emit(op.add(y, emit(op.multiply(cube, constant(np.array(0.044715), LOW))))),
                constant(np.array(0.7978845608), LOW),
            )
        )
        half = emit(op.multiply(y, constant(np.array(0.5), LOW)))
        return op.multiply(half, emit(op.add(emit(op.tanh(inner)), constant(np.array(1.0), LOW))))

    made = optimize(graph(net, x=(LOW, (3, 8))), HOPPER, CompileOptions())
    assert any("gelu_tanh" in str(var.name_hint) for var in made.module.get_global_vars())


@pytest.mark.parametrize(
    ("net", "left"),
    [
        (lambda x: norm(wide(x)), ["layer_norm"]),
        (lambda x: op.nn.rms_norm(wide(x), constant(np.ones(8), "float32"), axes=-1), ["rms_norm"]),
        (lambda x: op.multiply(op.exp(wide(x)), wide(x)), ["astype", "exp", "multiply"]),
        (lambda x: (op.exp(wide(x)), op.abs(wide(x))), ["astype", "exp", "astype", "abs"]),
    ],
    ids=["layer norm", "rms norm", "product", "two readers"],
)
def test_each_reader_reads_what_is_stored(net: Any, left: list[str]) -> None:
    x = random(3, 8, dtype=LOW)
    given = relax.transform.EliminateCommonSubexpr()(graph(net, x=(LOW, (3, 8))))
    with TARGET:
        made = relax.transform.DeadCodeElimination()(ReadLow()(given))
    assert operators(made) == left
    for got, want in zip(compute(made, x), compute(given, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def block(x: Any) -> Any:
    """Half of a transformer's layer in fp16, gated; the residual stream is read by a norm and by a sum."""
    ones, zeros = constant(np.ones(16), LOW), constant(np.zeros(16), LOW)
    normed = emit(op.nn.layer_norm(x, ones, zeros, axes=-1))
    gate, up = (emit(op.matmul(normed, weights(16, 32, seed=seed, dtype=LOW))) for seed in (1, 2))
    hidden = emit(op.multiply(emit(op.nn.silu(gate)), up))
    x = emit(op.add(emit(op.matmul(hidden, weights(32, 16, seed=3, dtype=LOW))), x))
    return op.nn.layer_norm(x, ones, zeros, axes=-1)


def test_a_16_bit_model_has_no_fp32_between_kernels_of_a_gpu() -> None:
    module, x = graph(block, x=(LOW, (2, 5, 16))), random(2, 5, 16, dtype=LOW)
    made = optimize(module, HOPPER, CompileOptions())
    stored = {
        str(b.var.ty.dtype)
        for part in made.module["main"].body.blocks
        for b in part.bindings
        if hasattr(b.var.ty, "dtype")
    }
    assert stored == {LOW}
    (got,), (want,) = run(made, x), compute(module, x)
    np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), rtol=1e-2, atol=1e-2)
