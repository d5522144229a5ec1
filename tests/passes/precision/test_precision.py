"""Mixed precision: 16-bit operands, fp32 arithmetic, the boundary unchanged."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir import TensorLoad
from tvm.relax import op

from relaxc.schedules.ir import tir
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import array_of, constant, numpy_dtype
from relaxc.service.passes.precision.cancel_casts import CancelCasts
from relaxc.service.passes.precision.narrow_contractions import NarrowContractions, has_weight
from relaxc.service.passes.precision.store_low import StoreLow
from relaxc.service.passes.precision.store_products_low import StoreProductsLow
from relaxc.service.passes.precision.widen_arithmetic import WidenArithmetic, WidenProducts
from relaxc.service.passes.simplify.merge_equal_calls import MergeEqualCalls
from relaxc.service.request import CompileOptions, Precision
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


def low(x: Any, dtype: str = "bfloat16") -> Any:
    return op.astype(x, dtype)


def wide(x: Any) -> Any:
    return op.astype(x, "float32")


def test_arithmetic_on_16_bits_is_in_fp32() -> None:
    given = graph(lambda x, y: op.nn.softmax(op.add(x, y), axis=-1), x=("float16", (2, 3)), y=("float16", (2, 3)))
    expected = graph(
        lambda x, y: low(op.nn.softmax(wide(low(op.add(wide(x), wide(y)), "float16")), axis=-1), "float16"),
        x=("float16", (2, 3)),
        y=("float16", (2, 3)),
    )
    assert_becomes(given, WidenArithmetic(contractions=False), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_contractions_accumulate_in_fp32_or_compute_there(dtype: str) -> None:
    weight = weights(3, 4, dtype=dtype)
    given = graph(lambda x: op.matmul(x, weight), x=(dtype, (2, 3)))
    accumulating = graph(lambda x: low(op.matmul(x, weight, out_dtype="float32"), dtype), x=(dtype, (2, 3)))
    assert_becomes(given, WidenArithmetic(contractions=False), accumulating)
    computing = graph(lambda x: low(op.matmul(wide(x), wide(weight), out_dtype="float32"), dtype), x=(dtype, (2, 3)))
    assert_becomes(given, WidenArithmetic(contractions=True), computing)


def test_fp32_arithmetic_is_not_touched() -> None:
    given = graph(lambda x: op.nn.gelu(op.matmul(x, weights(3, 4))), x=(2, 3))
    assert_unchanged(given, WidenArithmetic(contractions=True))


def test_tuples_of_operands_and_results() -> None:
    given = graph(lambda x, y: op.einsum([x, y], "ij,jk->ik"), x=("float16", (2, 3)), y=("float16", (3, 4)))
    expected = graph(
        lambda x, y: low(op.einsum([wide(x), wide(y)], "ij,jk->ik"), "float16"),
        x=("float16", (2, 3)),
        y=("float16", (3, 4)),
    )
    assert_becomes(given, WidenArithmetic(contractions=False), expected)


def test_narrowing_keeps_the_result_in_fp32() -> None:
    weight = weights(4, 3, 3, 3)
    given = graph(lambda x: op.nn.conv2d(x, weight), x=("n", 3, 8, 8))
    expected = graph(lambda x: op.nn.conv2d(low(x), low(weight), out_dtype="float32"), x=("n", 3, 8, 8))
    assert_becomes(given, NarrowContractions("bfloat16"), expected)


def test_fp64_is_not_narrowed() -> None:
    given = graph(lambda x, y: op.matmul(x, y), x=("float64", (2, 2)), y=("float64", (2, 2)))
    assert_unchanged(given, NarrowContractions("float16"))


def test_casts_meet_through_movement_and_cancel() -> None:
    given = graph(lambda x: op.exp(wide(op.permute_dims(op.reshape(low(op.abs(x)), [3, 2]), [1, 0]))), x=(2, 3))
    expected = graph(lambda x: op.exp(op.permute_dims(op.reshape(op.abs(x), [3, 2]), [1, 0])), x=(2, 3))
    assert_becomes(given, CancelCasts(), expected)


def test_casts_of_all_parts_of_a_concat_cancel() -> None:
    given = graph(lambda x, y: wide(op.concat([low(op.abs(x)), low(op.exp(y))], axis=0)), x=(2, 3), y=(2, 3))
    expected = graph(lambda x, y: op.concat([op.abs(x), op.exp(y)], axis=0), x=(2, 3), y=(2, 3))
    assert_becomes(given, CancelCasts(), expected)


def test_a_table_stays_in_16_bits() -> None:
    table = weights(10, 4, dtype="bfloat16")
    given = graph(lambda i: op.exp(op.take(wide(table), i, axis=0)), i=("int64", (5,)))
    expected = graph(lambda i: op.exp(wide(op.take(table, i, axis=0))), i=("int64", (5,)))
    assert_becomes(given, CancelCasts(), expected)


def test_a_value_read_in_16_bits_is_stored_in_16_bits() -> None:
    weight = weights(4, 4, dtype="bfloat16")

    def given(x: Any) -> Any:
        hidden = relax.BlockBuilder.current().emit(op.exp(x))
        product = op.matmul(low(op.reshape(hidden, [2, 3, 4])), weight, out_dtype="float32")
        return op.add(product, op.reshape(hidden, [2, 3, 4]))

    def expected(x: Any) -> Any:
        emit = relax.BlockBuilder.current().emit
        stored = emit(low(op.exp(x)))
        read = emit(wide(stored))
        product = op.matmul(op.reshape(stored, [2, 3, 4]), weight, out_dtype="float32")
        return op.add(product, op.reshape(read, [2, 3, 4]))

    both = tvm.transform.Sequential([StoreLow(asked=True), relax.transform.EliminateCommonSubexpr()])
    assert_becomes(graph(given, x=(6, 4)), both, graph(expected, x=(6, 4)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_a_model_has_in_fp32_beside_its_rounding_stays(dtype: str) -> None:
    """A residual stream in float32, whose rounding is multiplied: numbers that fp16 has not go through a norm."""
    weight = weights(16, 16, dtype=dtype)

    def net(x: Any, residual: Any) -> Any:
        stream = relax.BlockBuilder.current().emit(op.add(op.multiply(wide(x), relax.const(1e5, "float32")), residual))
        norm = op.nn.softmax(op.multiply(stream, relax.const(1e-3, "float32")), axis=-1)
        return op.matmul(low(stream, dtype), weight), op.matmul(low(norm, dtype), weight), norm

    x, residual = random(4, 16).astype(numpy_dtype(dtype)), random(4, 16, seed=1)
    module = graph(net, x=(dtype, (4, 16)), residual=(4, 16))
    assert_unchanged(module, StoreLow())
    exact = x.astype("float32") * np.float32(100) + residual * np.float32(1e-3)
    grown = np.exp(exact - exact.max(-1, keepdims=True))
    *_, got = run(optimize(module, TARGET, CompileOptions(opt_level=1)), x, residual)
    np.testing.assert_allclose(got, grown / grown.sum(-1, keepdims=True), rtol=1e-3, atol=1e-6)


def test_a_rounding_that_a_product_reads_stays_for_all_that_read_it() -> None:
    weight = weights(4, 4, dtype="float16")

    def net(x: Any) -> Any:
        narrow = relax.BlockBuilder.current().emit(low(op.exp(x), "float16"))
        read = relax.BlockBuilder.current().emit(op.reshape(narrow, [2, 3, 4]))
        return op.add(op.matmul(read, weight, out_dtype="float32"), wide(read))

    assert_unchanged(MergeEqualCalls()(graph(net, x=(6, 4))), CancelCasts())


def test_roundings_of_all_parts_of_a_concat_are_seen() -> None:
    weight = weights(4, 4, dtype="bfloat16")

    def net(x: Any) -> Any:
        parts = [low(op.exp(x)), low(op.abs(x))]
        return op.matmul(op.concat(parts, axis=0), weight)

    assert_unchanged(graph(net, x=(2, 4)), StoreLow(asked=True))


def test_outputs_are_not_rounded() -> None:
    weight = weights(4, 4, dtype="bfloat16")

    def net(x: Any) -> Any:
        hidden = relax.BlockBuilder.current().emit(op.exp(x))
        return op.matmul(low(hidden), weight, out_dtype="float32"), hidden

    assert_unchanged(graph(net, x=(2, 4)), StoreLow(asked=True))


def test_what_was_rounded_and_widened_is_not_rounded_again() -> None:
    """Else there is no end to it: a GRU of 16 bits was refused in strict mode."""

    def net(x: Any) -> Any:
        wide = op.astype(op.astype(op.add(x, x), "float16"), "float32")
        again = op.astype(wide, "float16")
        return relax.Tuple([op.matmul(again, again), op.add(wide, wide)])

    assert_unchanged(graph(net, x=(4, 4)), StoreLow(asked=True))


def block(x: Any) -> Any:
    """A transformer's feed-forward half, in the dtype of `x`: norm, two layers, residual."""
    dtype = str(x.ty.dtype)
    norm = op.nn.layer_norm(x, constant(np.ones(16), dtype), constant(np.zeros(16), dtype), axes=-1)
    hidden = op.nn.gelu(op.add(op.matmul(norm, weights(16, 32, dtype=dtype)), weights(32, dtype=dtype)))
    return op.nn.softmax(op.add(op.matmul(hidden, weights(32, 16, dtype=dtype)), x), axis=-1)


def contractions(module: tvm.IRModule) -> set[tuple[str, ...]]:
    """The dtypes of the operands, of the product and of the sum of each matmul in the PrimFuncs."""
    found: set[tuple[str, ...]] = set()

    def visit(node: Any) -> None:
        if node.init is not None and "matmul" in str(node.name_hint):
            product = node.body.value.b
            operands = sorted(_loads(product))
            found.add((*operands, str(product.ty.dtype), str(node.writes[0].source.ty.dtype)))

    for function in module.functions.values():
        if isinstance(function, tirx.PrimFunc):
            tvm_ffi.structural_walk(function.body, (s_tir.SBlock, visit))
    return found


def _loads(expr: Any) -> list[str]:
    found: list[str] = []

    tvm_ffi.structural_walk(expr, (TensorLoad, lambda load: found.append(str(load.ty.dtype))))
    return found


@cache
def in_fp32() -> Any:
    """What the block computes in fp32."""
    return run(optimize(graph(block, x=(2, 4, 16)), TARGET, CompileOptions()), random(2, 4, 16))[0]


_OF_FLOATS = [precision for precision in Precision if precision is not Precision.INT8]  # whose scales are of samples


@pytest.mark.sampled("float32-fp16-1", "float32-fp32-1", "float16-bf16-1")
@pytest.mark.parametrize(
    ("model", "precision", "level"),
    [
        *((model, precision, 1) for model in ("float32", "float16", "bfloat16") for precision in (None, *_OF_FLOATS)),
        ("float32", Precision.BF16, 0),
        ("float16", None, 0),
        ("bfloat16", Precision.FP32, 0),
    ],
)
def test_operands_accumulation_and_boundary(model: str, precision: Precision | None, level: int) -> None:
    module = graph(block, x=(model, ("n", 4, 16)))
    optimized = optimize(module, TARGET, CompileOptions(opt_level=level, precision=precision))
    operand = precision.dtype if precision else model
    assert contractions(optimized.module) == {(operand, operand, "float32", "float32")}
    x = random(2, 4, 16, dtype=model)
    got = run(optimized, x)[0]
    assert got.dtype == x.dtype
    tolerance = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.5e-2}
    atol = max(tolerance[model], tolerance[operand])
    np.testing.assert_allclose(got.astype("float32"), in_fp32(), atol=atol, rtol=atol)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_are_stored_in_16_bits(dtype: str) -> None:
    precision = Precision.FP16 if dtype == "float16" else Precision.BF16
    optimized = optimize(graph(block, x=(2, 4, 16)), TARGET, CompileOptions(precision=precision))
    matrices = [tensor for tensor in optimized.weights.values() if len(tensor.shape) > 1]
    assert {str(tensor.dtype) for tensor in matrices} == {dtype}
    assert optimized.report.precision == f"{precision.value} operands, fp32 arithmetic"


def test_casts_cost_no_kernels() -> None:
    plain = optimize(graph(block, x=(2, 4, 16)), TARGET, CompileOptions(opt_level=1))
    mixed = optimize(graph(block, x=(2, 4, 16)), TARGET, CompileOptions(opt_level=1, precision=Precision.BF16))
    assert mixed.report.kernel_calls == plain.report.kernel_calls


def test_a_models_own_rounding_is_kept_without_16_bit_arithmetic() -> None:
    module = graph(lambda x: op.exp(op.astype(op.astype(x, "float16"), "float32")), x=(4,))
    x = np.float32([1.0001, 2.0002, -0.3333, 1e-9])
    got = run(optimize(module, TARGET, CompileOptions()), x)[0]
    np.testing.assert_allclose(got, np.exp(x.astype("float16").astype("float32")), rtol=1e-6)


def test_fp16_weights_of_an_fp16_model_are_the_models() -> None:
    weight = weights(16, 32, dtype="float16")
    module = graph(lambda x: op.matmul(x, weight), x=("float16", (2, 16)))
    optimized = optimize(module, TARGET, CompileOptions(opt_level=1))
    (kept,) = optimized.weights.values()
    np.testing.assert_array_equal(kept.numpy(), array_of(weight))


def halves(x: Any) -> list[Any]:
    return [op.strided_slice(x, [1], [at], [at + 4], [1], assume_inbound=True) for at in (0, 4)]


def sliced(x: Any, rounded: bool, *, residual: Any = None) -> Any:
    """The first half of a linear layer times GELU of the second."""
    whole = op.matmul(x, weights(8, 8, dtype="float16"), out_dtype="float32")
    whole = op.add(whole, weights(8) if residual is None else wide(residual))
    value, gate = [wide(half) for half in halves(low(whole, "float16"))] if rounded else halves(whole)
    return low(op.multiply(value, op.nn.gelu(gate)), "float16")


def test_what_is_only_read_in_slices_is_stored_in_16_bits() -> None:
    given, expected = (
        MergeEqualCalls()(graph(lambda x, rounded=rounded: sliced(x, rounded), x=("float16", (2, 8))))
        for rounded in (False, True)
    )
    assert_becomes(given, tvm.transform.Sequential([StoreProductsLow(asked=True), MergeEqualCalls()]), expected)


def test_sums_and_what_is_read_whole_stay_in_fp32() -> None:
    shape = ("float16", (2, 8))
    residual = MergeEqualCalls()(graph(lambda x, r: sliced(x, False, residual=r), x=shape, r=shape))
    assert_unchanged(residual, StoreProductsLow(asked=True))

    def net(x: Any) -> Any:
        whole = op.matmul(x, weights(8, 8, dtype="float16"), out_dtype="float32")
        return op.add(halves(whole)[0], op.sum(whole))

    assert_unchanged(MergeEqualCalls()(graph(net, x=shape)), StoreProductsLow(asked=True))

    alone = MergeEqualCalls()(graph(lambda x: sliced(x, False), x=shape))
    assert_unchanged(alone, StoreProductsLow())  # a sum in float32, for all that this pass knows


def test_the_later_of_two_products_is_stored_in_16_bits_for_the_gate() -> None:
    def product(x: Any, seed: int) -> Any:
        return op.matmul(x, weights(8, 4, seed=seed, dtype="float16"), out_dtype="float32")

    given = graph(lambda x: op.multiply(op.nn.silu(product(x, 0)), product(x, 1)), x=("float16", (2, 8)))
    made = StoreProductsLow()(given)
    assert operators(made) == ["matmul", "matmul", "astype", "gated"]
    x = random(2, 8).astype("float16")
    np.testing.assert_allclose(compute(made, x)[0], compute(given, x)[0], rtol=2e-3, atol=2e-3)


def test_a_depthwise_convolution_among_layers_on_nhwc_stays_in_fp32() -> None:
    def depthwise(x: Any) -> Any:
        return op.nn.conv2d(x, weights(16, 1, 3, 3), padding=1, groups=16)

    narrow = NarrowContractions("bfloat16", has_weight)
    shape = (1, 7, 7, 16)
    alone = graph(lambda x: depthwise(op.permute_dims(x, [0, 3, 1, 2])), x=shape)
    assert_unchanged(alone, narrow)
    assert operators(narrow(graph(depthwise, x=(1, 16, 7, 7)))) == ["astype", "astype", "nn.conv2d"]


def test_on_cpus_products_of_two_computed_values_stay_in_fp32() -> None:
    narrow = NarrowContractions("bfloat16", has_weight)
    assert_unchanged(graph(lambda x: op.matmul(x, x), x=(4, 4)), narrow)
    assert operators(narrow(graph(lambda x: op.matmul(x, weights(4, 4)), x=(4, 4)))) == ["astype", "astype", "matmul"]


def test_what_stays_in_fp32_is_widened_first() -> None:
    widen = WidenProducts(has_weight)

    def product(x: Any) -> Any:
        return op.matmul(x, x, out_dtype="float32")

    assert operators(widen(graph(product, x=("bfloat16", (4, 4))))) == ["astype", "astype", "matmul"]
    assert_unchanged(graph(lambda x: op.matmul(x, weights(4, 4, dtype="bfloat16")), x=("bfloat16", (4, 4))), widen)


@pytest.mark.parametrize("opt_level", [0, 2])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_product_on_a_gpu_sums_in_16_bits(dtype: str, opt_level: int) -> None:
    """A row times a matrix, which may be dlight's: it adds in the dtype that it finds."""
    row, matrix = (dtype, (1, 40)), (dtype, (40, 40))
    given = graph(lambda x, w, b: op.add(op.add(op.matmul(x, w), b), x), x=row, w=matrix, b=(dtype, (40,)))
    target = to_tvm(resolve("cuda-sm80"))
    made = optimize(given, target, CompileOptions(opt_level=opt_level)).module
    sums = [
        str(block.init.buffer.dtype)
        for func in made.functions.values() if isinstance(func, tirx.PrimFunc)
        for block in tir.collect(func.body, s_tir.SBlock) if block.init is not None
    ]  # fmt: skip
    assert sums == ["float32"]
