"""What a kernel says of itself is what FuseOps put into it: the operator, and what is behind it with its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import relax, tirx

from relaxc.schedules.ir.describe import kernel_of
from relaxc.schedules.ir.kernel import OPERATOR, Kernel
from relaxc.schedules.operators import Conv2d, Matmul
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions
from tests.passes.graphs import graph, weights

op = relax.op
TARGET = to_tvm(resolve("x86-64-v3"))


def emit(value: Any) -> Any:
    return relax.BlockBuilder.current().emit(value)


def kernels(build: Any, **inputs: Any) -> list[Kernel]:
    """The kernels with an operator of a network."""
    module = optimize(graph(build, **inputs), TARGET, CompileOptions()).module
    found = [kernel_of(func) for func in module.functions.values() if isinstance(func, tirx.PrimFunc)]
    return [kernel for kernel in found if kernel.operator is not None]


def product(behind: Callable[[Any], Any]) -> Kernel:
    [found] = kernels(lambda x: behind(emit(op.matmul(x, weights(32, 24)))), x=(8, 32))
    return found


DIFFERENT: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "erf and tanh": (op.nn.gelu, op.nn.gelu_tanh),
    "a bias and a residual": (lambda y: op.add(y, weights(24)), lambda y: op.add(y, weights(8, 24))),
    "a column and a row": (lambda y: op.add(y, weights(24)), lambda y: op.add(y, weights(8, 1))),
    "the bounds of a clip": (lambda y: op.clip(y, 0.0, 6.0), lambda y: op.clip(y, 0.0, 4.0)),
    "which is subtracted": (
        lambda y: op.subtract(y, weights(8, 24)),
        lambda y: op.subtract(weights(8, 24), y),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_is_behind_counts(name: str) -> None:
    one, other = map(product, DIFFERENT[name])
    assert one.operator == other.operator == Matmul(m=8, n=24, k=32)
    assert one.digest != other.digest


def block(x: Any) -> Any:
    """A convolution whose bias is a value a channel, and whose residual has the same elements."""
    y = op.add(emit(op.nn.conv2d(x, weights(16, 16, 3, 3), padding=1)), weights(1, 16, 1, 1))
    return op.nn.silu(op.add(y, emit(op.nn.relu(x))))


def test_the_layout_of_a_plan_does_not_count() -> None:
    """Blocks of 8 channels or of 16: the same operator and the same behind it, without their sizes."""
    found = []
    for name in ("x86-64-v3", "x86-64-v4"):
        module = optimize(graph(block, x=(1, 16, 6, 6)), to_tvm(resolve(name)), CompileOptions()).module
        each = [kernel_of(func) for func in module.functions.values() if isinstance(func, tirx.PrimFunc)]
        found += [kernel for kernel in each if isinstance(kernel.operator, Conv2d)]
    one, other = found
    assert one.digest == other.digest and one.behind.startswith(" +add.channel+add+")
    assert one.steps[0].name == OPERATOR and not any(operand.shape for operand in one.operands)


def test_a_residual_belongs_to_the_product_that_it_was_fused_with() -> None:
    """Where two products are added, exactly one has the addition: the one that FuseOps gave it to."""

    def sum_of_two(x: Any) -> Any:
        return op.add(emit(op.matmul(x, weights(32, 24))), emit(op.matmul(op.exp(x), weights(32, 24, seed=1))))

    assert sorted(kernel.behind for kernel in kernels(sum_of_two, x=(8, 32))) == ["", " +add"]
