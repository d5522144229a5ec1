"""Products whose rows are known at the call alone: right for any number, with no condition in the inner loop."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.ir import Call

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.gemm.matmul_blocks import MatmulBlocks
from relaxc.schedules.cpu.gemm.matmul_packed import MatmulPacked
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.ir import tir
from relaxc.schedules.operators import BlockMatmul, Matmul, operator_from
from relaxc.schedules.plan import Plan
from relaxc.schedules.template import Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from tests.guarded import guarded_tensor

pytestmark = pytest.mark.sampled

pipeline.register()

DTYPES = {
    "float32": ("float32",) * 3,
    "bfloat16": ("bfloat16", "bfloat16", "float32"),
    "uint8": ("uint8", "int8", "int32"),
}
BEHIND = ("nothing", "bias and relu", "residual")


def random_of(draw: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Numbers of a dtype; whole ones for bytes."""
    if dtype.endswith("int8"):
        return draw.integers(-3 if dtype == "int8" else 0, 4, shape).astype(dtype)
    numbers = draw.standard_normal(shape).astype("float32")
    return numbers.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else numbers


def product(op: Matmul, plan: Plan, leading: tuple[Any, ...], behind: str) -> Any:
    """The PrimFunc of a product of A `[*leading, k]` with what is behind it, which all kinds of operands take."""
    data = te.placeholder((*leading, op.k), op.operands[0], name="data")
    shape = planning.packed_shape(plan, (op.k, op.n))
    result = planning.computation(plan)(data, te.placeholder(shape, op.operands[1], name="panels"))
    weight = result.op.input_tensors[0].op.input_tensors[1]
    bias = te.placeholder((op.n,), op.out, name="bias")
    residual = te.placeholder(result.shape, op.out, name="residual")
    values = {
        "nothing": lambda *i: result(*i) + tirx.const(0, op.out) * bias(i[-1]),
        "bias and relu": lambda *i: te.max(result(*i) + bias(i[-1]), tirx.const(0, op.out)),
        "residual": lambda *i: result(*i) + bias(i[-1]) + residual(*i),
    }
    out = te.compute(result.shape, values[behind], name="behind")
    return te.create_prim_func([data, weight, bias, residual, out])


def built(op: Matmul, plan: Plan, leading: tuple[Any, ...], behind: str, target: Any) -> Any:
    """What the template makes of the product."""
    made = MatmulPacked().apply(product(op, plan, leading, behind), target)
    assert isinstance(made, Schedule), made
    return made.func.with_attr("tirx.is_scheduled", True)


@pytest.mark.sampled(most=6)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "auto"])
def test_any_number_of_rows(name: str, behind: str, dtype: str) -> None:
    seed = f"{name} {behind} {dtype}"
    choice, draw = random.Random(seed), np.random.default_rng(len(seed))
    target = to_tvm(resolve(name))
    cpu, (left, right, total) = cpu_of(target), DTYPES[dtype]
    op = Matmul(
        m=0,
        n=choice.choice([1, 24, 40, 67]),
        k=choice.choice([4, 36, 64]),
        operands=(left, right),
        accumulate=total,
        out=total,
    )
    plan = choice.choice(planning.space(op, cpu))
    leading = choice.choice(
        [(te.var("m", "int64"),), (te.var("b", "int64"), 3), (te.var("b", "int64"), te.var("s", "int64"))]
    )
    function = tirx.build(
        tvm.IRModule({"main": built(op, plan, leading, behind, target)}), target, pipeline=pipeline.NAME
    )["main"]
    weight, tile = random_of(draw, right, (op.k, op.n)), plan.parameters["rows"]
    bias = random_of(draw, total, (op.n,)) if total == "float32" else draw.integers(-9, 9, op.n).astype(total)
    for count in (0, 1, 2, 3, tile - 1, tile, tile + 1, 2 * tile + 1, 101):
        sizes = (count, *(size if isinstance(size, int) else 1 + count % 7 for size in leading[1:]))
        data = random_of(draw, left, (*sizes, op.k))
        residual = np.ones((*sizes, op.n), total)
        packed = np.ascontiguousarray(planning.arranged(plan, weight))
        want = data.astype(total) @ weight.astype(total)
        more = {"nothing": 0 * bias, "bias and relu": bias, "residual": bias + residual}[behind]
        want = np.maximum(want + more, 0) if "relu" in behind else want + more
        for side in ("start", "end"):
            tensors = [guarded_tensor(each, side) for each in (data, packed, bias, residual, np.zeros_like(residual))]  # type: ignore[arg-type]
            function(*tensors)
            np.testing.assert_allclose(tensors[-1].numpy(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("bits", "block", "zeros"), [(4, 32, False), (4, 16, True), (8, 4, True), (8, 64, False)])
@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "auto"])
def test_any_number_of_rows_of_codes(name: str, bits: int, block: int, zeros: bool) -> None:
    draw, target = np.random.default_rng(bits + block), to_tvm(resolve(name))
    op = BlockMatmul(m=0, n=int(draw.integers(1, 100)), k=2 * block, block=block, bits=bits, zeros=zeros)
    plan = planning.default(op, cpu_of(target))
    codes = draw.integers(0, 1 << bits, (op.n, op.k), "uint8")
    scales = draw.random((op.n, 2), "float32") + 0.5
    own = draw.integers(0, 1 << bits, (op.n, 2), "uint8") if zeros else None
    parts = planning.pack_blocks(plan, codes, scales, own)
    shape = te.var("b", "int64"), te.var("s", "int64")
    placed = [te.placeholder(part.shape, str(part.dtype), name=f"part{i}") for i, part in enumerate(parts)]
    data = te.placeholder((*shape, op.k), name="data")
    result = planning.computation(plan)(data, *placed)
    out = te.compute(result.shape, lambda *i: te.max(result(*i), tirx.const(0, "float32")), name="relu")
    made = MatmulBlocks().apply(te.create_prim_func([data, *placed, out]), target)
    assert isinstance(made, Schedule), made
    module = tvm.IRModule({"main": made.func.with_attr("tirx.is_scheduled", True)})
    function = tirx.build(module, target, pipeline=pipeline.NAME)["main"]
    middle = own if own is not None else np.full((op.n, 2), 1 << bits - 1, "uint8")
    weight = (codes.astype("float32") - middle.repeat(block, 1).astype("float32")) * scales.repeat(block, 1)
    for rows in (0, 1, 2, 3, plan.parameters["rows"] + 1, 53):
        values = random_of(draw, "float32", (rows, 2, op.k))
        want = np.maximum(values @ weight.T, 0)
        for side in ("start", "end"):
            tensors = [guarded_tensor(each, side) for each in (values, *parts, np.zeros_like(want))]  # type: ignore[arg-type]
            function(*tensors)
            np.testing.assert_allclose(tensors[-1].numpy(), want, rtol=1e-4, atol=1e-4 * want.max(initial=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sum_has_no_condition_and_no_minimum(dtype: str) -> None:
    """TVM proves nothing of sizes that it does not know: what it leaves in the inner loop costs more than the sums."""
    target = to_tvm(resolve("x86-64-v3"))
    left, right, total = DTYPES[dtype]
    op = Matmul(m=0, n=100, k=64, operands=(left, right), accumulate=total, out=total)
    made = built(
        op, planning.default(op, cpu_of(target)), (te.var("b", "int64"), te.var("s", "int64")), "residual", target
    )
    loops = [loop for loop in tir.collect(made, tirx.For) if not tir.collect(loop.body, tirx.For)]
    sums = [loop for loop in loops if str(loop.loop_var.name).startswith("k")]
    assert len(sums) > 3
    for loop in sums:
        assert not tir.collect(loop.body, (tirx.IfThenElse, tirx.Min, tirx.Max, tirx.Select))
        assert not any(tir.is_if_then_else(call) for call in tir.collect(loop.body, Call))


def test_the_plan_of_unknown_rows_travels() -> None:
    cpu = cpu_of(to_tvm(resolve("x86-64-v3")))
    op = Matmul(m=0, n=100, k=64)
    assert operator_from(op.key()) == op
    assert op.digest != Matmul(m=1, n=100, k=64).digest
    plan = planning.default(op, cpu)
    assert Plan.from_json(plan.to_json()).parameters == plan.parameters
    assert not planning.refusal(op, plan.template, plan.parameters, cpu)
    assert planning.refusal(op, plan.template, {**plan.parameters, "rows": 40}, cpu)
    assert plan == planning.space(op, cpu)[0]
