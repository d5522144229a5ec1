"""The templates on layouts that the graph passes chose: every shape and every choice computes what numpy does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from schedules.cpu.conv.conv2d_blocked import Conv2dBlocked
from schedules.cpu.gemm.matmul_packed import MatmulPacked
from schedules.hardware import cpu_of
from schedules.template import Declined, Rule, Schedule
from service.lowering import pipeline
from service.lowering.target import resolve, to_tvm
from service.passes.kernels import blocked_compute as compute
from tests.guarded import guarded_tensor

pipeline.register()
TARGETS = ["x86-64-v2", "x86-64-v3", "auto"]

Array = np.ndarray[Any, Any]


def relu_of(tensor: te.Tensor, *more: te.Tensor) -> te.Tensor:
    """An epilogue: the residuals added, and a relu."""
    return te.compute(tensor.shape, lambda *i: te.max(sum((m(*i) for m in more), tensor(*i)), 0.0), name="relu")


def convolution(lanes: int, geometry: dict[str, Any], channels: int, out: int, kernel: int, size: tuple[int, int]):
    """A PrimFunc of a blocked convolution with a residual and a relu."""
    blocks, out_blocks = -(-channels // lanes), -(-out // lanes)
    data = te.placeholder((1, blocks, *size, lanes), name="data")
    weight = te.placeholder((out_blocks, blocks, kernel, kernel, lanes, lanes), name="weight")
    full = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, **geometry}
    product = compute.conv2d(data, weight, most_rows=14 if lanes == 16 else 6, out_dtype="float32", **full)
    residual = te.placeholder(product.shape, name="residual")
    return te.create_prim_func([data, weight, residual, relu_of(product, residual)])


def product(rows: Any, depth: int, columns: int, width: int, tile: int):
    """A PrimFunc of a packed matrix product with a residual and a relu; `rows` is one size or several."""
    leading = rows if isinstance(rows, tuple) else (rows,)
    data = te.placeholder((*leading, depth), name="data")
    panels = te.placeholder((-(-columns // width), depth, width), name="panels")
    result = compute.matmul(data, panels, columns=columns, row_tile=tile, out_dtype="float32")
    residual = te.placeholder(result.shape, name="residual")
    return te.create_prim_func([data, panels, residual, relu_of(result, residual)])


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
    func = convolution(lanes_of(name), geometry, 20, 33, kernel, size)
    agree(Conv2dBlocked(), func, name)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("geometry", [{}, {"strides": (2, 2)}, {"strides": (1, 2), "dilation": (2, 1)}])
@pytest.mark.parametrize(("size", "kernel"), [((7, 7), 1), ((7, 7), 3), ((9, 4), 3), ((14, 14), 1)])
def test_tiles_over_the_ends_of_short_rows(name: str, geometry: dict[str, Any], size: Any, kernel: int) -> None:
    padding = (kernel // 2,) * 4
    func = convolution(lanes_of(name), {"padding": padding, **geometry}, 32, 64, kernel, size)
    agree(Conv2dBlocked(), func, name)


def test_a_small_image_is_one_row_of_unrolled_tiles() -> None:
    func = convolution(16, {"padding": (1, 1, 1, 1)}, 32, 256, 3, (7, 7))
    found = Conv2dBlocked().apply(func, to_tvm(resolve("x86-64-v4")))
    assert isinstance(found, Schedule)
    assert found.parameters["rows"] == 10
    assert "T.unroll(5" in str(found.func)


@pytest.mark.parametrize(("cores", "size", "height", "chunks"), [(2, 14, 7, 1), (2, 7, 5, 2), (4, 7, 5, 4)])
def test_tasks_are_of_rows_where_these_divide_among_the_cores(cores: int, size: int, height: int, chunks: int) -> None:
    func = convolution(16, {}, 256, 128, 1, (size, size))
    target = to_tvm(replace(resolve("x86-64-v4"), cores=cores))
    found = Conv2dBlocked().apply(func, target)
    assert isinstance(found, Schedule)
    assert (found.parameters["height"], found.parameters["chunks"]) == (height, chunks)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("rows", [1, 3, 7, 13, 31, (2, 3, 5)])
@pytest.mark.parametrize(("depth", "columns", "vectors"), [(7, 31, 1), (64, 100, 2), (13, 1000, 3)])
def test_products(name: str, rows: Any, depth: int, columns: int, vectors: int) -> None:
    func = product(rows, depth, columns, vectors * lanes_of(name), 4 if rows == 31 else 1)
    agree(MatmulPacked(), func, name)


CASES: dict[str, tuple[Rule, Callable[[], Any]]] = {
    "conv2d": (Conv2dBlocked(), lambda: convolution(16, {"padding": (1, 1, 1, 1)}, 32, 64, 3, (8, 12))),
    "conv2d 1x1": (Conv2dBlocked(), lambda: convolution(16, {}, 32, 64, 1, (6, 8))),
    "matmul": (MatmulPacked(), lambda: product(24, 16, 90, 48, 8)),
    "matmul in parts": (MatmulPacked(), lambda: product(25, 256, 330, 48, 5)),
}


@pytest.mark.parametrize("case", CASES)
def test_any_choice_is_right(case: str) -> None:
    rule, build = CASES[case]
    func = build()
    choices = rule.choices(func, to_tvm(resolve("x86-64-v4")))
    assert not isinstance(choices, Declined)
    points = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    for point in random.Random(0).sample(points, min(6, len(points))):
        agree(rule, func, "auto" if lanes_of("auto") == 16 else "x86-64-v4", point)


@pytest.mark.parametrize(("rows", "tile"), [(13, 13), (31, 8), (49, 7)])
@pytest.mark.parametrize(("columns", "panels"), [(144, 1), (144, 3), (1000, 7)])
def test_a_depth_in_parts(rows: int, tile: int, columns: int, panels: int) -> None:
    func = product(rows, 384, columns, 48, tile)
    name = "auto" if lanes_of("auto") == 16 else "x86-64-v4"
    agree(MatmulPacked(), func, name, {"rows": tile, "tiles": 1, "panels": panels, "depth": 128, "unroll": 4})


@pytest.mark.parametrize("cores", [2, 48])
@pytest.mark.parametrize("size", [(1, 3136), (56, 56), (112, 112)])
def test_the_default_is_a_point_of_the_space(cores: int, size: tuple[int, int]) -> None:
    """A record of the default must be taken again: tasks of 112 tiles, and chunks for 48 cores, once were not."""
    target = to_tvm(replace(resolve("x86-64-v4"), cores=cores))
    rules: list[tuple[Rule, Any]] = [
        (Conv2dBlocked(), convolution(16, {}, 16, 1024, 1, size)),
        (MatmulPacked(), product(size[0], 64, 64 * size[1], 16, 1)),
    ]
    for rule, func in rules:
        found = rule.apply(func, target)
        assert isinstance(found, Schedule)
        assert isinstance(rule.apply(func, target, found.parameters), Schedule)


def test_a_prime_number_of_tiles_is_rounded_up() -> None:
    func = product(1500, 384, 1536, 48, 9)  # 167 tiles of 9 rows
    found = MatmulPacked().apply(func, to_tvm(resolve("x86-64-v4")))
    assert isinstance(found, Schedule)
    assert found.parameters["tiles"] > 8
    choices = MatmulPacked().choices(func, to_tvm(resolve("x86-64-v4")))
    assert not isinstance(choices, Declined)
    assert all(found.parameters[name] in values for name, values in choices.items())


def test_the_depth_is_split_where_a_block_of_full_depth_does_not_fit_l2() -> None:
    target = to_tvm(resolve("x86-64-v4"))
    short = MatmulPacked().apply(product(128, 768, 768, 48, 8), target)
    long = MatmulPacked().apply(product(128, 3072, 768, 48, 8), target)
    assert isinstance(short, Schedule)
    assert isinstance(long, Schedule)
    assert short.parameters["depth"] == 768
    assert long.parameters["depth"] < 256
    text = str(long.func)
    assert "relaxc.accumulate_locally" in text
    assert "relaxc.prefetch_ahead" in text


@pytest.mark.parametrize("rule", [Conv2dBlocked(), MatmulPacked()], ids=lambda rule: rule.name)
def test_what_they_decline(rule: Rule) -> None:
    data, other = (te.placeholder((8, 8), name=name) for name in "ab")
    k = te.reduce_axis((0, 8), name="k")
    plain = te.compute((8, 8), lambda i, j: te.sum(data[i, k] * other[k, j], axis=k), name="matmul")
    found = rule.apply(te.create_prim_func([data, other, plain]), to_tvm(resolve("x86-64-v3")))
    assert isinstance(found, Declined)
    assert found.reason


def test_parameters_outside_the_space_are_refused() -> None:
    rule, build = CASES["matmul"]
    with pytest.raises(ValueError, match="rows"):
        rule.apply(build(), to_tvm(resolve("x86-64-v4")), {"rows": 7, "tiles": 1, "unroll": 4})
