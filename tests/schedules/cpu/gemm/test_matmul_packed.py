"""The templates on layouts that the graph passes chose: every shape and every choice computes what numpy does."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.conv import blocked_plan
from relaxc.schedules.cpu.conv.conv2d_blocked import Conv2dBlocked
from relaxc.schedules.cpu.gemm import packed_plan
from relaxc.schedules.cpu.gemm.matmul_packed import MatmulPacked
from relaxc.schedules.hardware import Cpu, cpu_of
from relaxc.schedules.operators import Conv2d, Matmul, Operator
from relaxc.schedules.template import Declined, Rule, Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from tests.guarded import guarded_tensor

pytestmark = pytest.mark.sampled

pipeline.register()
TARGETS = ["x86-64-v2", "x86-64-v3", "auto"]

Array = np.ndarray[Any, Any]


def relu_of(tensor: te.Tensor, *more: te.Tensor) -> te.Tensor:
    """An epilogue: the residuals added, and a relu."""
    return te.compute(tensor.shape, lambda *i: te.max(sum((m(*i) for m in more), tensor(*i)), 0.0), name="relu")


def cpu_named(name: str) -> Cpu:
    return cpu_of(to_tvm(resolve(name)))


def convolution_of(op: Conv2d, cpu: Cpu, parameters: dict[str, int] | None = None) -> Any:
    """A PrimFunc of a blocked convolution with a residual and a relu, by the default or by these parameters."""
    plan = planning.planned(op, "cpu.conv2d_blocked", parameters or blocked_plan.default(op, cpu), cpu)
    lanes = cpu.lanes(32)
    data = te.placeholder((op.batch, -(-op.channels // lanes), op.height, op.width, lanes), name="data")
    packed = planning.pack(plan, np.zeros((op.filters, op.channels // op.groups, *op.kernel), "float32"))
    weight = te.placeholder(packed.shape, name="weight")
    product = planning.computation(plan)(data, weight)
    residual = te.placeholder(product.shape, name="residual")
    return te.create_prim_func([data, weight, residual, relu_of(product, residual)])


def convolution(cpu: Cpu, geometry: dict[str, Any], channels: int, out: int, kernel: int, size: tuple[int, int]) -> Any:
    """The PrimFunc of the default plan of a convolution."""
    return convolution_of(conv_op(geometry, channels, out, kernel, size), cpu)


def conv_op(geometry: dict[str, Any], channels: int, out: int, kernel: int, size: tuple[int, int]) -> Conv2d:
    height, width = size
    shape = {"batch": 1, "channels": channels, "height": height, "width": width}
    return Conv2d(**shape, filters=out, kernel=(kernel, kernel), **geometry)


def product_of(leading: tuple[int, ...], op: Matmul, cpu: Cpu, parameters: dict[str, int] | None = None) -> Any:
    """A PrimFunc of a packed matrix product with a residual and a relu, by the default or by these parameters."""
    plan = planning.planned(op, "cpu.matmul_packed", parameters or packed_plan.default(op, cpu), cpu)
    data = te.placeholder((*leading, op.k), name="data")
    panels = te.placeholder(planning.pack(plan, np.zeros((op.k, op.n), "float32")).shape, name="panels")
    result = planning.computation(plan)(data, panels)
    residual = te.placeholder(result.shape, name="residual")
    return te.create_prim_func([data, panels, residual, relu_of(result, residual)])


def blocking(cpu: Cpu, op: Matmul, vectors: int, tile: int, **changed: int) -> dict[str, int]:
    """The plainest parameters for a register tile."""
    padded = -(-op.m // tile) * tile
    layout = {"block": cpu.lanes(32), "vectors": vectors, "padded": padded}
    return {**layout, "rows": tile, "tiles": 1, "panels": 1, "depth": op.k, "unroll": 1, **changed}


def matmul_op(rows: Any, depth: int, columns: int) -> tuple[tuple[int, ...], Matmul]:
    """The leading axes of A and the operator; `rows` is one size or several."""
    leading = rows if isinstance(rows, tuple) else (rows,)
    return leading, Matmul(m=prod(leading), n=columns, k=depth)


def run(func: Any, target: Any, shapes: list[tuple[int, ...]]) -> Array:
    """What the PrimFunc computes for seeded random inputs of these shapes; the last is its output."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    built = tirx.build(tvm.IRModule({"main": func}), target, pipeline=pipeline.NAME)["main"]
    for side in ("start", "end"):
        tensors = [guarded_tensor(array, side) for array in arrays]  # type: ignore[arg-type]
        built(*tensors)
    return tensors[-1].numpy()


def shapes_of(func: Any) -> list[tuple[int, ...]]:
    """The sizes of a PrimFunc's buffers."""
    return [tuple(int(d) for d in p.shape) for p in func.params]


def agree(rule: Rule, func: Any, name: str, parameters: Any = None) -> None:
    """The rule takes the PrimFunc, and what it makes computes the same as the PrimFunc unscheduled."""
    target = to_tvm(resolve(name))
    found = rule.apply(func, target, parameters)
    assert isinstance(found, Schedule), found
    scheduled = found.func.with_attr("tirx.is_scheduled", True)
    shapes = shapes_of(func)
    np.testing.assert_allclose(run(scheduled, target, shapes), run(func, target, shapes), rtol=2e-4, atol=2e-4)


def lanes_of(name: str) -> int:
    return cpu_of(to_tvm(resolve(name))).lanes(32)


@pytest.mark.parametrize("name", ["x86-64-v3", "auto"])
@pytest.mark.parametrize("size", [(1, 1), (3, 7), (13, 31)])
@pytest.mark.parametrize(
    ("kernel", "geometry"),
    [
        (1, {}),
        (1, {"strides": (2, 2)}),
        (3, {"padding": (1, 1, 1, 1)}),
        (3, {"padding": (2, 2, 2, 2), "dilation": (2, 2)}),
        (3, {"padding": (0, 1, 2, 1), "strides": (2, 1)}),
    ],
)
def test_convolutions(name: str, size: tuple[int, int], kernel: int, geometry: dict[str, Any]) -> None:
    func = convolution(cpu_named(name), geometry, 20, 33, kernel, size)
    agree(Conv2dBlocked(), func, name)


@pytest.mark.sampled("size2-3-geometry2-x86-64-v2", "size0-1-geometry0-x86-64-v3", "size3-1-geometry1-x86-64-v3")
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("geometry", [{}, {"strides": (2, 2)}, {"strides": (1, 2), "dilation": (2, 1)}])
@pytest.mark.parametrize(("size", "kernel"), [((7, 7), 1), ((7, 7), 3), ((9, 4), 3), ((14, 14), 1)])
def test_tiles_over_the_ends_of_short_rows(name: str, geometry: dict[str, Any], size: Any, kernel: int) -> None:
    padding = (kernel // 2,) * 4
    func = convolution(cpu_named(name), {"padding": padding, **geometry}, 32, 64, kernel, size)
    agree(Conv2dBlocked(), func, name)


def test_a_small_image_is_one_row_of_unrolled_tiles() -> None:
    func = convolution(cpu_named("x86-64-v4"), {"padding": (1, 1, 1, 1)}, 32, 256, 3, (7, 7))
    found = Conv2dBlocked().apply(func, to_tvm(resolve("x86-64-v4")))
    assert isinstance(found, Schedule)
    assert found.parameters["rows"] == 10
    assert "T.unroll(5" in str(found.func)


@pytest.mark.parametrize(("cores", "size", "height", "chunks"), [(2, 14, 7, 1), (2, 7, 5, 2), (4, 7, 5, 4)])
def test_tasks_are_of_rows_where_these_divide_among_the_cores(cores: int, size: int, height: int, chunks: int) -> None:
    target = to_tvm(replace(resolve("x86-64-v4"), cores=cores))
    func = convolution(cpu_of(target), {}, 256, 128, 1, (size, size))
    found = Conv2dBlocked().apply(func, target)
    assert isinstance(found, Schedule)
    assert (found.parameters["height"], found.parameters["chunks"]) == (height, chunks)


@pytest.mark.sampled(most=5)
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("rows", [1, 3, 7, 13, 31, (2, 3, 5)])
@pytest.mark.parametrize(("depth", "columns", "vectors"), [(7, 31, 1), (64, 100, 2), (13, 1000, 3)])
def test_products(name: str, rows: Any, depth: int, columns: int, vectors: int) -> None:
    leading, op = matmul_op(rows, depth, columns)
    cpu = cpu_named(name)
    agree(MatmulPacked(), product_of(leading, op, cpu), name)
    agree(MatmulPacked(), product_of(leading, op, cpu, blocking(cpu, op, vectors, 4 if rows == 31 else 1)), name)


OPERATORS: dict[str, tuple[Operator, Callable[..., Any]]] = {
    "conv2d": (conv_op({"padding": (1, 1, 1, 1)}, 32, 64, 3, (8, 12)), convolution_of),
    "conv2d 1x1": (conv_op({}, 32, 64, 1, (6, 8)), convolution_of),
    "conv2d small": (conv_op({"padding": (1, 1, 1, 1)}, 32, 64, 3, (7, 7)), convolution_of),
    "matmul": (Matmul(m=24, n=90, k=16), lambda op, *more: product_of((op.m,), op, *more)),
    "matmul in parts": (Matmul(m=25, n=330, k=256), lambda op, *more: product_of((op.m,), op, *more)),
    "matmul of few rows": (Matmul(m=2, n=330, k=64), lambda op, *more: product_of((op.m,), op, *more)),
}


@pytest.mark.sampled("matmul in parts")
@pytest.mark.parametrize("case", OPERATORS)
def test_any_point_is_right(case: str) -> None:
    op, build = OPERATORS[case]
    name = "auto" if lanes_of("auto") == 16 else "x86-64-v4"
    cpu = cpu_named(name)
    plans = [plan for plan in planning.space(op, cpu) if plan.template != "cpu.winograd"]
    for plan in random.Random(0).sample(plans, min(8, len(plans))):
        rule = planning.template(plan.template)
        assert rule is not None
        agree(rule, build(op, cpu, dict(plan.parameters)), name)


@pytest.mark.parametrize("name", [*TARGETS, "x86-64-v4", "aarch64"])
@pytest.mark.parametrize(
    "op",
    [
        Matmul(m=1, n=1000, k=2048),
        Matmul(m=13, n=31, k=7),
        Matmul(m=128, n=3072, k=768),
        Matmul(m=1500, n=1536, k=384),
        conv_op({"padding": (1, 1, 1, 1)}, 64, 64, 3, (56, 56)),
        conv_op({"padding": (1, 1, 1, 1)}, 512, 512, 3, (7, 7)),
        conv_op({}, 20, 33, 1, (13, 31)),
        conv_op({"strides": (2, 2)}, 64, 256, 1, (1, 3136)),
    ],
    ids=str,
)
def test_a_space_has_the_default_and_no_point_that_is_refused(name: str, op: Operator) -> None:
    cpu = cpu_named(name)
    plans = planning.space(op, cpu)
    assert 8 <= len(plans) <= 2 * planning.MOST_POINTS
    assert plans[0] == planning.default(op, cpu)
    assert len({(plan.template, *plan.parameters.items()) for plan in plans}) == len(plans)
    refused = {planning.refusal(op, plan.template, plan.parameters, cpu) for plan in plans}
    assert refused == {""}


def test_groups_that_do_not_fill_blocks_have_no_point() -> None:
    cpu = cpu_named("x86-64-v3")
    op = conv_op({"groups": 4}, 16, 16, 1, (7, 7))
    assert "groups" in planning.refusal(op, "cpu.conv2d_blocked", blocked_plan.default(op, cpu), cpu)
    assert list(blocked_plan.points(op, cpu)) == []


@pytest.mark.parametrize(("rows", "tile", "vectors"), [(13, 13, 2), (31, 8, 3), (49, 7, 3)])
@pytest.mark.parametrize(("columns", "panels"), [(144, 1), (144, 3), (1008, 7)])
def test_a_depth_in_parts(rows: int, tile: int, vectors: int, columns: int, panels: int) -> None:
    name = "auto" if lanes_of("auto") == 16 else "x86-64-v4"
    cpu, op = cpu_named(name), Matmul(m=rows, n=columns, k=384)
    panels = panels if vectors == 3 else 1
    parameters = blocking(cpu, op, vectors, tile, panels=panels, depth=128, unroll=4)
    agree(MatmulPacked(), product_of((rows,), op, cpu, parameters), name)


@pytest.mark.parametrize("cores", [2, 48])
@pytest.mark.parametrize("size", [(1, 3136), (56, 56), (112, 112)])
def test_the_default_is_a_point_of_the_space(cores: int, size: tuple[int, int]) -> None:
    """A record of the default must be taken again: tasks of 112 tiles, and chunks for 48 cores, once were not."""
    target = to_tvm(replace(resolve("x86-64-v4"), cores=cores))
    cpu = cpu_of(target)
    rules: list[tuple[Rule, Any]] = [
        (Conv2dBlocked(), convolution(cpu, {}, 16, 1024, 1, size)),
        (MatmulPacked(), product_of((size[0],), Matmul(m=size[0], n=64 * size[1], k=64), cpu)),
    ]
    for rule, func in rules:
        found = rule.apply(func, target)
        assert isinstance(found, Schedule)
        assert isinstance(rule.apply(func, target, found.parameters), Schedule)


def test_a_prime_number_of_tiles_is_rounded_up() -> None:
    parameters = packed_plan.default(Matmul(m=1500, n=1536, k=384), cpu_named("x86-64-v4"))
    assert parameters["rows"] == 9  # of which there are 167 tiles
    assert parameters["tiles"] > 8


def test_the_depth_is_split_where_a_block_of_full_depth_does_not_fit_l2() -> None:
    target = to_tvm(resolve("x86-64-v4"))
    short, long = (
        MatmulPacked().apply(product_of((128,), Matmul(m=128, n=768, k=depth), cpu_of(target)), target)
        for depth in (768, 3072)
    )
    assert isinstance(short, Schedule)
    assert isinstance(long, Schedule)
    assert short.parameters["depth"] == 768
    assert long.parameters["depth"] < 256
    text = str(long.func)
    assert "relaxc.accumulate_locally" in text
    assert "relaxc.prefetch_ahead" in text


def test_rows_that_stay_in_l2_are_read_with_one_panel_after_the_other() -> None:
    """The panels are one stream from memory then; side by side they were nine percent slower for GPT-2."""
    cpu = cpu_named("x86-64-v4")
    few, many = (packed_plan.default(Matmul(m=rows, n=768, k=3072), cpu) for rows in (64, 128))
    assert few["depth"] < 3072 and few["panels"] == 1
    assert many["depth"] < 3072 and many["panels"] > 1


@pytest.mark.parametrize("rows", [512, 1024, 4096])
def test_a_panel_that_fills_l2_is_not_read_again_for_every_tile(rows: int) -> None:
    """A product of 512 rows took 1.9 times as long as with all rows in a task."""
    cpu = cpu_named("x86-64-v4")
    parameters = packed_plan.default(Matmul(m=rows, n=1024, k=4096), cpu)
    assert parameters["depth"] == 4096
    assert parameters["tiles"] * parameters["rows"] >= 100


@pytest.mark.parametrize("rule", [Conv2dBlocked(), MatmulPacked()], ids=lambda rule: rule.name)
def test_what_they_decline(rule: Rule) -> None:
    data, other = (te.placeholder((8, 8), name=name) for name in "ab")
    k = te.reduce_axis((0, 8), name="k")
    plain = te.compute((8, 8), lambda i, j: te.sum(data[i, k] * other[k, j], axis=k), name="matmul")
    found = rule.apply(te.create_prim_func([data, other, plain]), to_tvm(resolve("x86-64-v3")))
    assert isinstance(found, Declined)
    assert found.reason


def test_parameters_outside_the_space_are_refused() -> None:
    op, target = Matmul(m=24, n=90, k=16), to_tvm(resolve("x86-64-v4"))
    func = product_of((24,), op, cpu_of(target))
    with pytest.raises(ValueError, match="rows"):
        MatmulPacked().apply(func, target, {**packed_plan.default(op, cpu_of(target)), "rows": 7})


def test_another_layout_than_the_weights_have_is_refused() -> None:
    op, target = Matmul(m=24, n=90, k=16), to_tvm(resolve("x86-64-v4"))
    func = product_of((24,), op, cpu_of(target), blocking(cpu_of(target), op, 2, 8))
    with pytest.raises(ValueError, match="vectors"):
        MatmulPacked().apply(func, target, blocking(cpu_of(target), op, 1, 8))
