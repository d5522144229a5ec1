"""The operators that both tuners get, as Relax modules with their weights as constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx

from benchmarks.kernels import cases as kernels
from relaxc.schedules.ir import tir

__all__ = ["CASES", "Case", "module_of", "shapes_of"]


@dataclass(frozen=True)
class Case:
    """One operator in fp32: shapes of its inputs and weights, and what it computes of them."""

    name: str
    inputs: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[int, ...], ...]
    relax: Callable[..., Any]


def _gemm_relu() -> Case:
    return Case("gemm", ((128, 768),), ((768, 3072),), lambda x, w: relax.op.nn.relu(relax.op.matmul(x, w)))


def _of_network(name: str, family: str, label: str) -> Case:
    """An operator that benchmarks.kernels times: a convolution with bias and ReLU."""
    found = next(case for case in kernels.cases([family]) if case.label == label)
    return Case(name, found.inputs, found.weights, found.relax)


CASES = {
    case.name: case
    for case in (
        _gemm_relu(),
        _of_network("conv3x3", "conv", "64->64 3x3/1 56x56"),
        _of_network("conv1x1", "conv", "256->64 1x1/1 56x56"),
        _of_network("depthwise", "depthwise", "144->144 3x3/1 56x56"),
    )
}


def module_of(case: Case) -> Any:
    """The operator as the function `main` of its inputs."""
    rng = np.random.default_rng(0)
    weights = [relax.const(rng.standard_normal(shape, dtype=np.float32)) for shape in case.weights]
    variables = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(case.inputs)]
    block = relax.BlockBuilder()
    with block.function("main", variables):
        with block.dataflow():
            made = block.normalize(case.relax(*variables, *weights))
            result = block.emit_output(relax.Tuple([made]))
        block.emit_func_output(result)
    return block.get()


def shapes_of(func: Any) -> tuple[tuple[int, ...], ...]:
    """The shapes of a PrimFunc's buffers, in the order of its parameters."""
    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    return tuple(tuple(int(tir.as_int(size) or 0) for size in buffer.shape) for buffer in buffers)
