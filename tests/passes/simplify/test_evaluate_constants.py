"""EvaluateConstants: subgraphs of constants become their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import array_of, constant
from relaxc.service.passes.simplify.evaluate_constants import LARGEST_BYTES, EvaluateConstants
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, assert_unchanged, compute, graph, ops, random, run


def buckets(length: int) -> Any:
    """Logarithmic distances between positions, as T5 computes them: nothing that numpy does for FoldConstants."""
    position = constant(np.arange(1, length + 1, dtype="float32"))
    distance = op.subtract(op.reshape(position, [length, 1]), op.reshape(position, [1, length]))
    return op.astype(op.floor(op.log(op.add(op.abs(distance), constant(np.float32(1.5))))), "int64")


def value_of(module: Any) -> Any:
    """The constant operand of the only call that is left."""
    (call,) = (
        b.value for block in module["main"].body.blocks for b in block.bindings if isinstance(b.value, relax.Call)
    )
    return array_of(call.args[1])


def test_a_subgraph_becomes_its_value() -> None:
    module = graph(lambda x: op.add(x, op.take(constant(random(4, 3)), buckets(8), axis=0)), x=(8, 8, 3))
    after = EvaluateConstants()(module)
    assert ops(after) == ["add"]
    distance = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
    want = random(4, 3)[np.floor(np.log(distance + 1.5)).astype(int)]
    np.testing.assert_array_equal(value_of(after), want)


def test_several_results_of_one_subgraph() -> None:
    def net(x: Any) -> Any:
        shared = relax.BlockBuilder.current().emit(op.exp(constant(random(4))))
        return op.add(x, op.sin(shared)), op.add(x, op.cos(shared))

    module, x = graph(net, x=("n", 4)), random(2, 4)
    after = EvaluateConstants()(module)
    assert ops(after) == ["add", "add"]
    for got, want in zip(compute(after, x), compute(module, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_result_may_be_an_output() -> None:
    module = graph(lambda x: (op.exp(x), op.tanh(constant(np.float32([1, 2])))), x=(3,))
    got = run(optimize(module, TARGET, CompileOptions(opt_level=1)), random(3))
    np.testing.assert_allclose(got[1], np.tanh(np.float32([1, 2])), rtol=1e-6)


def test_resampled_tables() -> None:
    table = constant(random(1, 3, 4, 4))
    module = graph(lambda x: op.add(x, op.image.resize2d(table, (8, 8), method="cubic")), x=(2, 3, 8, 8))
    optimized = optimize(module, TARGET, CompileOptions(opt_level=1))
    assert optimized.report.fusions == {"add": 1}
    x = random(2, 3, 8, 8)
    np.testing.assert_allclose(run(optimized, x)[0], compute(module, x)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.add(x, op.exp(x)),
        lambda x: op.multiply(x, op.sum(op.exp(op.broadcast_to(constant(np.float32(1)), [LARGEST_BYTES // 4 + 1])))),
        lambda x: op.add(x, op.exp(op.broadcast_to(constant(np.float32(1)), [x.ty.shape[0], 4]))),
    ],
    ids=["reads an input", "is large on the way", "has a symbolic size"],
)
def test_the_rest_stays(build: Any) -> None:
    assert_unchanged(graph(build, x=("n", 4)), EvaluateConstants())


def test_a_maximum_of_nothing_but_infinities_is_one() -> None:
    """TVM's own kernel begins with the lowest finite number."""
    module = graph(lambda x: (x, op.max(constant(np.full((2, 3), -np.inf, "float32")), axis=1)), x=(3,))
    assert compute(EvaluateConstants()(module), random(3))[1].tolist() == [-np.inf] * 2
