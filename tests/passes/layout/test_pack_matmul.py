"""Products with constant weights reach the packed template in every type that it multiplies, with right numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relaxc.schedules.plan import plan_of
from relaxc.service.lowering import pipeline, schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import finalize, optimize
from relaxc.service.passes.common.constants import constant, numpy_dtype
from relaxc.service.passes.layout.pack_matmul import PackMatmul
from relaxc.service.request import CompileOptions
from tests.passes.graphs import graph, operators
from tests.passes.layout.blocked import CPU, inputs, same, weight

pipeline.register()
TARGETS = ["x86-64-v2", "x86-64-v3", "auto"]

R = relax.op

Array = np.ndarray[Any, Any]


def some(dtype: str, *shape: int, seed: int) -> Array:
    """Random numbers: floats about 0, bytes from the least to the most."""
    rng = np.random.default_rng(seed)
    if "int" in dtype:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


def compiled(module: tvm.IRModule, name: str, *inputs: Array) -> tuple[Array, list[dict[str, Any]], list[Any]]:
    """What a module computes after every stage of a compile, the schedule report, and the plans that it followed."""
    spec = resolve(name)
    optimized = optimize(module, to_tvm(spec), CompileOptions())
    plans = [plan_of(func) for func in optimized.module.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    scheduled = schedule(optimized.module, spec)
    ready, _ = finalize(scheduled.module, to_tvm(spec))
    library = relax.build(ready, to_tvm(spec), relax_pipeline=None, tir_pipeline=pipeline.NAME)
    machine = relax.VirtualMachine(library, tvm.cpu())
    results = machine["main"](
        *(tvm.runtime.tensor(array) for array in inputs), tvm.runtime.convert(list(optimized.weights.values()))
    )
    return results[0].numpy(), scheduled.report, [plan for plan in plans if plan is not None]


@pytest.mark.sampled(most=21)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("left", "right", "out"),
    [
        ("float32", "float32", "float32"),
        ("bfloat16", "bfloat16", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float16", "float16", "float32"),
        ("int8", "int8", "int32"),
        ("uint8", "int8", "int32"),
    ],
)
@pytest.mark.parametrize(("rows", "depth", "columns"), [((13,), 70, 50), ((2, 7), 300, 129), ((1,), 31, 100)])
def test_every_type_reaches_the_template(
    left: str, right: str, out: str, rows: tuple[int, ...], depth: int, columns: int, target: str
) -> None:
    a, b = some(left, *rows, depth, seed=1), some(right, depth, columns, seed=2)
    module = graph(lambda x: relax.op.matmul(x, constant(b), out_dtype=out), x=(left, (*rows, depth)))
    got, report, plans = compiled(module, target, a)
    assert "cpu.matmul_packed" in [row["rule"] for row in report]
    assert [plan.operator.operands for plan in plans] == [(left, right)]
    assert plans[0].operator.accumulate == ("int32" if "int" in left else "float32")
    if "int" in left:
        np.testing.assert_array_equal(got, a.astype("int64") @ b.astype("int64"))
        return
    want = a.astype("float64") @ b.astype("float64")
    rounding = 2**-8 if out == "bfloat16" else 2e-6
    np.testing.assert_allclose(got.astype("float64"), want, rtol=0, atol=rounding * np.abs(want).max())


def test_extreme_bytes_do_not_wrap() -> None:
    """255 * -128 over a long depth is far from 16 bits, where pairs of products would saturate."""
    a, b = np.full((5, 1024), 255, "uint8"), np.full((1024, 33), -128, "int8")
    module = graph(lambda x: relax.op.matmul(x, constant(b), out_dtype="int32"), x=("uint8", (5, 1024)))
    got, report, _ = compiled(module, "auto", a)
    assert (got == -255 * 128 * 1024).all()
    assert "cpu.matmul_packed" in [row["rule"] for row in report]


@pytest.mark.parametrize(("left", "right", "out"), [("int8", "int8", "int8"), ("float64", "float64", "float64")])
def test_other_types_stay_as_they_are(left: str, right: str, out: str) -> None:
    a, b = some(left, 13, 24, seed=1), some(right, 24, 17, seed=2)
    module = graph(lambda x: relax.op.matmul(x, constant(b), out_dtype=out), x=(left, (13, 24)))
    got, report, plans = compiled(module, "x86-64-v3", a)
    assert not plans
    assert "cpu.matmul" in [row["rule"] for row in report]
    np.testing.assert_allclose(got, a @ b, rtol=1e-9)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_narrowed_model_reaches_the_template(precision: str) -> None:
    from relaxc.service.request import Precision

    weight, bias = constant(some("float32", 64, 90, seed=1)), constant(some("float32", 90, seed=2))
    module = graph(lambda x: relax.op.nn.relu(relax.op.add(relax.op.matmul(x, weight), bias)), x=(33, 64))
    options = replace(CompileOptions(), precision=Precision(precision))
    optimized = optimize(module, to_tvm(resolve("x86-64-v3")), options)
    report = schedule(optimized.module, resolve("x86-64-v3")).report
    assert "cpu.matmul_packed" in [row["rule"] for row in report], report


@pytest.mark.sampled
@pytest.mark.parametrize("rows", [(1, 197), (1,), (1, 3), (5,), (2, 3, 7), (128,)])
@pytest.mark.parametrize("columns", [1, 31, 48, 100, 1000])
def test_packed_products(rows: tuple[int, ...], columns: int) -> None:
    module = graph(lambda x: R.nn.relu(R.matmul(x, weight(20, columns))), x=(*rows, 20))
    changed = PackMatmul(CPU)(module)
    assert not changed.same_as(module)
    same(module, changed, *inputs((*rows, 20)))


def test_symbolic_rows_and_variable_weights_stay_as_they_are() -> None:
    for module in (
        graph(lambda x: R.matmul(x, weight(20, 40)), x=("n", 3, 20)),
        graph(lambda x, y: R.matmul(x, y), x=(64, 20), y=(20, 40)),
    ):
        assert operators(PackMatmul(CPU)(module)) == ["matmul"]
