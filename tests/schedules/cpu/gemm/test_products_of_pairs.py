"""Products of bfloat16, by the instruction that takes pairs and by the form for CPUs without it, beside numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relaxc.schedules.cpu.common.dot_product import STEPS
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.plan import plan_of
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions
from tests.schedules.numpy_tir import numpy_dtype
from tests.schedules.spaces import PAIRS, agree, points, rule

Array = np.ndarray[Any, Any]


def kernels(rows: int, depth: int, columns: int, target: str) -> list[Any]:
    """The kernels of `relu(A @ W)` of bfloat16, the result in bfloat16."""
    weight = np.random.default_rng(1).standard_normal((depth, columns)).astype(numpy_dtype("bfloat16"))
    block = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType((rows, depth), "bfloat16"))
    with block.function("main", [data]):
        with block.dataflow():
            product = block.emit(relax.op.matmul(data, relax.const(tvm.runtime.tensor(weight)), out_dtype="float32"))
            given = block.emit(relax.op.astype(relax.op.nn.relu(product), "bfloat16"))
            result = block.emit_output(given)
        block.emit_func_output(result)
    module = optimize(block.get(), to_tvm(resolve(target)), CompileOptions()).module
    return [func.with_attr("global_symbol", "main") for func in module.functions.values() if plan_of(func) is not None]


@pytest.mark.sampled(most=6)
@pytest.mark.parametrize("target", [PAIRS, "x86-64-v3"], ids=["avx512bf16", "x86-64-v3"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(1, 2, 1), (1, 7, 31), (3, 70, 33), (5, 13, 31), (7, 1, 17), (39, 257, 330), (31, 64, 48), (14, 129, 100)],
)
def test_a_product_is_numpys_of_rounded_operands(target: str, rows: int, depth: int, columns: int) -> None:
    (func,) = kernels(rows, depth, columns, target)
    asked = rule("cpu.matmul_packed")
    agree(func, asked, target, points(func, asked, target, most=3, seed=depth))


@pytest.mark.parametrize(("rows", "depth", "taken"), [(39, 256, 2), (39, 257, 2), (1, 64, 2), (1, 65, 1)])
def test_pairs_are_taken_of_an_odd_depth_too(rows: int, depth: int, taken: int) -> None:
    (func,) = kernels(rows, depth, 64, "znver4")
    assert plan_of(func).parameters.get(STEPS, 1) == taken


def test_without_the_instruction_none_are_taken() -> None:
    (func,) = kernels(39, 256, 64, "x86-64-v4")
    assert STEPS not in plan_of(func).parameters


@pytest.mark.slow
@pytest.mark.parametrize("target", [PAIRS], ids=["avx512bf16"])
def test_every_point_is_right(target: str) -> None:
    (func,) = kernels(25, 258, 330, target)
    asked = rule("cpu.matmul_packed")
    assert cpu_of(to_tvm(resolve(target))).dot("bfloat16").k == 2
    agree(func, asked, target, points(func, asked, target, most=1000))
