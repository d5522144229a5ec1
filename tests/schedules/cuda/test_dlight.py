"""dlight's rules: what they leave to the CPU is declined."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.relax import op

from benchmarks.gpu import gemm_bytes_cases, plain_cases
from benchmarks.gpu.fused import prim_func_of
from benchmarks.gpu.gemm_bytes_cases import BytesCase
from benchmarks.gpu.gemm_cases import Case, prim_func
from benchmarks.gpu.plain_cases import PlainCase
from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.dlight import Dlight
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm


def _patches():
    """A transposed image behind a class token, as a vision transformer has them."""
    image = relax.Var("image", relax.TensorType((1, 64, 14, 14), "float16"))
    token = relax.Var("token", relax.TensorType((1, 1, 64), "float16"))
    block = relax.BlockBuilder()
    with block.function("main", [image, token]):
        with block.dataflow():
            rows = block.emit(op.permute_dims(op.reshape(image, (1, 64, 196)), [0, 2, 1]))
            both = block.emit(op.concat([token, rows], axis=1))
            result = block.emit_output(op.astype(both, "float32"))
        block.emit_func_output(result)
    return prim_func_of(block.get())


def test_a_schedule_with_loops_outside_of_kernels_is_declined():
    target = to_tvm(resolve("cuda-sm90"))
    results = {rule.name: rule.apply(_patches(), target) for rule in RULES}
    declined = results["cuda.transpose"]
    assert isinstance(declined, Declined) and "leave loops to the CPU" in declined.reason
    assert isinstance(results["cuda.fallback"], Schedule)


@pytest.mark.parametrize("kind", [TypeError, ValueError])
def test_an_exception_of_a_rule_is_a_decline(kind):
    """A ValueError is what a scatter's bounds give, which dlight takes for a truth."""

    class Breaks:
        def apply(self, *_):
            raise kind("not an integer")

    result = Dlight("cuda.broken", Breaks(), "").apply(_patches(), to_tvm(resolve("cuda-sm90")))
    assert isinstance(result, Declined) and "not an integer" in result.reason


def test_a_rule_that_takes_an_expression_for_an_integer_declines():
    """Batches of products with one vector in fp32, which gpu.GEMV splits into an extent that is a quotient."""
    func, target = prim_func(Case(24, 31, 1, 97, "float32", "float16", "relu")), to_tvm(resolve("cuda-sm90"))
    results = {rule.name: rule.apply(func, target) for rule in RULES if isinstance(rule, Dlight)}
    declined = results["cuda.gemv"]
    assert isinstance(declined, Declined) and "FloorDiv" in declined.reason
    assert any(isinstance(result, Schedule) for result in results.values())


def test_a_rule_that_breaks_within_tvm_declines():
    """The mean of all elements with something fused before it, on which gpu.Reduction loses a block."""
    case, target = PlainCase("mean", (1, 61, 191), steps=("tanh",), axes=(0, 1, 2)), to_tvm(resolve("cuda-sm90"))
    results = {rule.name: rule.apply(plain_cases.prim_func(case), target) for rule in RULES[-6:]}
    declined = results["cuda.reduction"]
    assert isinstance(declined, Declined) and "block_realize" in declined.reason
    assert isinstance(results["cuda.general_reduction"], Schedule)


def test_a_schedule_that_tvm_cannot_lower_is_declined():
    """A grouped convolution of one pixel, whose channels gpu.Reduction gives to threads around other loops."""
    case, target = PlainCase("grouped", (1, 8, 1, 1), "bfloat16", axes=(2, 16, 1, 1)), to_tvm(resolve("cuda-sm90"))
    func = plain_cases.prim_func(case)
    results = {rule.name: rule.apply(func, target) for rule in RULES if isinstance(rule, Dlight)}
    declined = results["cuda.reduction"]
    assert isinstance(declined, Declined) and "across threads" in declined.reason
    assert isinstance(results["cuda.fallback"], Schedule)


def test_a_schedule_that_takes_more_shared_memory_than_there_is_is_declined():
    """A sum over the last two axes with elementwise operators before it, which gpu.GEMV takes for products with vectors
    and keeps them, 1.8 MB for 16 rows, in shared memory; ptxas refused the kernel."""
    steps, others = ("sigmoid", "sigmoid", "add", "subtract"), ((37, 127, 224), (1, 127, 1))
    case = PlainCase("sum", (37, 127, 224), out="float16", steps=steps, others=others, axes=(1, 2))
    func, target = plain_cases.prim_func(case), to_tvm(resolve("cuda-sm90"))
    results = {rule.name: rule.apply(func, target) for rule in RULES if isinstance(rule, Dlight)}
    declined = results["cuda.gemv"]
    assert isinstance(declined, Declined) and "bytes of shared memory, and a CTA has" in declined.reason
    assert any(isinstance(result, Schedule) for result in results.values())


@pytest.mark.slow
def test_fragments_of_bytes_are_declined():
    """gpu.Matmul has int8 fragments for sm_80, at which TVM's InferFragment stops when the library is built."""
    case, target = BytesCase(227, 264, 304, left="int8", out="int32"), to_tvm(resolve("cuda-sm80"))
    func = gemm_bytes_cases.prim_func(case)
    results = {rule.name: rule.apply(func, target) for rule in RULES if isinstance(rule, Dlight)}
    declined = results["cuda.matmul"]
    assert isinstance(declined, Declined) and "fragments of int8" in declined.reason
    assert isinstance(results["cuda.general_reduction"], Schedule) or isinstance(results["cuda.fallback"], Schedule)
