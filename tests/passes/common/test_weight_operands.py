"""weight_operands: what a kernel reads of the model's weights, and what of other kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.passes.common.weight_operands import weight_operands
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, graph, weights


def operands(build: Callable[..., Any], **inputs: Any) -> dict[str, tuple[int, ...]]:
    optimized = optimize(graph(build, **inputs), TARGET, CompileOptions())
    module, found = optimized.module, weight_operands(optimized.module)
    assert set(found) <= {var.name_hint for var in module.get_global_vars()}
    return found


def test_weights_and_activations_are_told_apart() -> None:
    found = operands(lambda x: op.nn.relu(op.add(op.matmul(x, weights(64, 64)), weights(64, seed=1))), x=(24, 64))
    assert list(found.values()) == [(1, 2)]


def test_a_product_of_activations_has_none() -> None:
    found = operands(lambda x, y: op.matmul(x, y), x=(24, 64), y=(64, 64))
    assert list(found.values()) == [()]


def test_an_operand_that_is_a_weight_in_one_call_only_is_none() -> None:
    def twice(x: Any, y: Any) -> Any:
        return op.nn.softmax(op.matmul(op.nn.softmax(op.matmul(x, weights(64, 64))), y))

    found = operands(twice, x=(24, 64), y=(64, 64))
    products = [places for name, places in found.items() if "matmul" in name]
    assert products in ([()], [(1,), ()])  # one PrimFunc where both have the same layout
