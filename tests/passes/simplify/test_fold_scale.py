"""FoldBatchNorm and FoldScale: constant factors end in the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import array_of, constant
from relaxc.service.passes.simplify.fold_batch_norm import FoldBatchNorm
from relaxc.service.passes.simplify.fold_scale import FoldScale
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, assert_becomes, assert_unchanged, compute, graph, ops, random, run, weights


def batch_norm(x: Any, channels: int, axis: int = 1, seed: int = 3) -> Any:
    """The first result of a batch_norm with random statistics."""
    rng, x = np.random.default_rng(seed), relax.BlockBuilder.current().emit(x)
    parameters = [constant(rng.uniform(0.5, 2.0, channels), str(x.ty.dtype)) for _ in range(4)]
    return relax.TupleGetItem(op.nn.batch_norm(x, *parameters, axis=axis, training=False), 0)


def simplified(module: tvm.IRModule) -> list[str]:
    with TARGET:
        sequence = tvm.transform.Sequential(
            [
                FoldBatchNorm(),
                relax.transform.CanonicalizeBindings(),
                FoldScale(),
                relax.transform.DeadCodeElimination(),
            ]
        )
        return ops(sequence(module))


def test_batch_norm_is_a_product_and_a_sum() -> None:
    gamma, beta, mean, variance = (np.array([a, a + 1.0], "float32") for a in (1.0, 2.0, 3.0, 4.0))
    scale = gamma.astype("float64") / np.sqrt(variance.astype("float64") + 1e-5)
    shift = beta - mean * scale
    given = graph(
        lambda x: relax.TupleGetItem(
            op.nn.batch_norm(x, *map(constant, (gamma, beta, mean, variance)), axis=1, training=False), 0
        ),
        x=("n", 2, 4),
    )
    expected = graph(
        lambda x: op.add(
            op.multiply(x, constant(scale.reshape(1, 2, 1), "float32")), constant(shift.reshape(1, 2, 1), "float32")
        ),
        x=("n", 2, 4),
    )
    assert_becomes(given, FoldBatchNorm(), expected)


def test_batch_norm_of_computed_statistics_stays() -> None:
    given = graph(
        lambda x, m: relax.TupleGetItem(op.nn.batch_norm(x, m, m, m, m, axis=1, training=False), 0), x=(2, 3), m=(3,)
    )
    assert_unchanged(given, FoldBatchNorm())


NETS = {
    "conv2d": lambda x: batch_norm(op.nn.conv2d(x, weights(6, 4, 3, 3)), 6),
    "conv2d + bias": lambda x: batch_norm(op.add(op.nn.conv2d(x, weights(6, 4, 3, 3)), weights(1, 6, 1, 1)), 6),
    "grouped conv2d": lambda x: batch_norm(op.nn.conv2d(x, weights(6, 2, 3, 3), groups=2), 6),
    "depthwise conv2d": lambda x: batch_norm(op.nn.conv2d(x, weights(4, 1, 3, 3), groups=4), 4),
    "conv2d_transpose": lambda x: batch_norm(op.nn.conv2d_transpose(x, weights(4, 6, 3, 3)), 6),
    "by hand": lambda x: op.add(
        op.multiply(op.subtract(op.nn.conv2d(x, weights(6, 4, 3, 3)), weights(1, 6, 1, 1)), weights(6, 1, 1)),
        weights(1, 6, 1, 1, seed=1),
    ),
    "divided": lambda x: op.divide(op.nn.conv2d(x, weights(6, 4, 3, 3)), constant(np.float32(3.0))),
}


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("name", NETS)
def test_what_follows_a_convolution_folds_into_it(name: str) -> None:
    module = graph(NETS[name], x=("n", 4, 8, 8))
    left = [each for each in simplified(module) if each not in ("nn.conv2d", "nn.conv2d_transpose", "add")]
    assert left == []
    x = random(2, 4, 8, 8)
    got = run(optimize(module, TARGET, CompileOptions()), x)
    np.testing.assert_allclose(got[0], compute(module, x)[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_batch_norm_folds_in_16_bit_models(dtype: str) -> None:
    module = graph(
        lambda x: op.nn.relu(batch_norm(op.nn.conv2d(x, weights(6, 4, 3, 3, dtype=dtype)), 6)), x=(dtype, (2, 4, 8, 8))
    )
    optimized = optimize(module, TARGET, CompileOptions(opt_level=1))
    assert optimized.report.fusions == {"conv2d + bias + relu + cast": 1}
    x = random(2, 4, 8, 8, dtype=dtype)
    want = compute(module, x)[0].astype("float32")
    tolerance = {"float16": 5e-3, "bfloat16": 4e-2}[dtype]
    np.testing.assert_allclose(run(optimized, x)[0].astype("float32"), want, rtol=tolerance, atol=tolerance)


def test_linear_with_bias_and_batch_norm() -> None:
    module = graph(lambda x: batch_norm(op.add(op.matmul(x, weights(5, 7)), weights(7)), 7, axis=1), x=("n", 5))
    assert simplified(module) == ["matmul", "add"]
    x = random(3, 5)
    got = run(optimize(module, TARGET, CompileOptions()), x)
    np.testing.assert_allclose(got[0], compute(module, x)[0], rtol=2e-5, atol=2e-5)


def test_attention_scale_moves_through_reshape_and_transpose_into_the_weights() -> None:
    half = constant(np.float32(0.5))

    def heads(x: Any) -> Any:
        return op.permute_dims(op.reshape(x, [2, 3, 4, 2]), [0, 2, 1, 3])

    weight, bias = weights(8, 8), weights(8)
    given = graph(lambda x: op.multiply(heads(op.add(op.matmul(x, weight), bias)), half), x=(2, 3, 8))
    expected = graph(
        lambda x: heads(
            op.add(op.matmul(x, constant(array_of(weight) * 0.5, "float32")), constant(array_of(bias) * 0.5, "float32"))
        ),
        x=(2, 3, 8),
    )
    assert_becomes(given, FoldScale(), expected)


def test_a_value_with_another_reader_keeps_its_weights() -> None:
    weight, scale = weights(4, 4), weights(4)

    def net(x: Any) -> Any:
        builder = relax.BlockBuilder.current()
        product = builder.emit(op.matmul(x, weight))
        return op.multiply(product, scale), op.exp(product)

    assert_unchanged(graph(net, x=(2, 4)), FoldScale())


@pytest.mark.parametrize(
    ("shape", "why"), [((3, 1), "along the rows"), ((2, 3, 4), "broadcasts the product"), ((3, 4), "along both axes")]
)
def test_a_factor_that_is_not_of_the_output_channel_stays(shape: tuple[int, ...], why: str) -> None:
    given = graph(lambda x: op.multiply(op.matmul(x, weights(5, 4)), weights(*shape)), x=(3, 5))
    assert_unchanged(given, FoldScale())


def test_a_weight_never_becomes_infinite() -> None:
    large = constant(np.full(4, 6e4), "float16")
    given = graph(
        lambda x: op.multiply(op.matmul(x, constant(np.full((3, 4), 100.0), "float16")), large), x=("float16", (2, 3))
    )
    assert_unchanged(given, FoldScale())


@pytest.mark.parametrize(("factor", "folds"), [(1e-4, False), (1e-2, False), (0.5, True), (0.0, True)])
def test_a_weight_never_loses_digits_below_the_least_number(factor: float, folds: bool) -> None:
    small = constant(np.random.default_rng(0).standard_normal((16, 8)) * 1e-3, "float16")
    given = graph(lambda x: op.multiply(op.matmul(x, small), constant(factor, "float16")), x=("float16", (2, 16)))
    assert len(simplified(given)) == (1 if folds else 2)


def test_a_shift_that_its_dtype_has_no_digits_for_stays_behind_the_sum() -> None:
    bias = constant(np.full(8, 1e-3), "float16")
    wide = constant(np.full((16, 8), 100.0), "float16")
    given = graph(
        lambda x: op.multiply(op.add(op.matmul(x, wide), bias), constant(1e-3, "float16")), x=("float16", (2, 16))
    )
    assert_unchanged(given, FoldScale())


def test_constants_of_a_chain_merge() -> None:
    given = graph(lambda x: op.add(op.add(x, constant(np.float32(1))), constant(np.float32(2))), x=(4,))
    assert_becomes(given, FoldScale(), graph(lambda x: op.add(x, constant(np.float32(3))), x=(4,)))


@pytest.mark.parametrize(
    ("first", "second", "numbers"),
    [
        ("add", "add", (12582912.0, -12582912.0)),  # which rounds
        ("add", "subtract", (1e8, 1e8)),
        ("add", "add", (1e8, -99999999.0)),
        ("multiply", "multiply", (1e35, 1e-35)),
        ("multiply", "multiply", (1e-30, 1e20)),
    ],
)
def test_what_rounds_or_overflows_between_stays(first: str, second: str, numbers: tuple[float, float]) -> None:
    def chain(x: Any) -> Any:
        return getattr(op, second)(
            getattr(op, first)(x, constant(numbers[0], "float32")), constant(numbers[1], "float32")
        )

    assert len(simplified(graph(chain, x=(4, 8)))) == 2


@pytest.mark.parametrize(("dtype", "merges"), [("float32", True), ("float16", False), ("bfloat16", False)])
def test_a_few_channels_may_cancel_out_as_far_as_the_dtype_has_digits(dtype: str, merges: bool) -> None:
    draw = np.random.default_rng(0)
    bias, shift = draw.standard_normal((2, 64)).astype("float32")
    shift[::4] = -bias[::4]
    bias[1], shift[1] = 20, -20.5

    def chain(x: Any) -> Any:
        return op.add(op.add(x, constant(bias, dtype)), constant(shift, dtype))

    assert len(simplified(graph(chain, x=(dtype, (8, 64))))) == (1 if merges else 2)


def test_integers_are_left_alone() -> None:
    one = constant(np.int32(1))
    given = graph(lambda x: op.subtract(op.multiply(op.multiply(x, one), one), one), x=("int32", (4,)))
    assert_unchanged(given, FoldScale())
