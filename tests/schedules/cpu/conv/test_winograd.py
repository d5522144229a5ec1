"""Winograd's template: one task loop around all stages, and for every shape and choice what a direct sum gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.conv import winograd_plan
from relaxc.schedules.cpu.conv.winograd import Winograd
from relaxc.schedules.cpu.conv.winograd_plan import Problem, blocking, direct_cycles
from relaxc.schedules.hardware import CPUS, Cpu, cpu_of
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.blocks import block_realizes
from relaxc.schedules.operators import Conv2d
from relaxc.schedules.strict import STRICT
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from tests.guarded import guarded_tensor

pytestmark = pytest.mark.sampled

pipeline.register()
Array = np.ndarray[Any, Any]
NO_PADDING, SAME = (0, 0, 0, 0), (1, 1, 1, 1)
TOLERANCE = 2e-5
"""Of the largest value; F(4x4) is off by less than 1e-5 over these few channels."""


def lanes_of(name: str) -> int:
    return cpu_of(to_tvm(resolve(name))).lanes(32)


def operator(image: tuple[int, ...], out: int, padding: Any = SAME, groups: int = 1) -> Conv2d:
    batch, channels, height, width = image
    shape = {"batch": batch, "channels": channels, "height": height, "width": width}
    return Conv2d(**shape, filters=out, kernel=(3, 3), padding=padding, groups=groups)


def weight_shape(op: Conv2d) -> tuple[int, ...]:
    return op.filters, op.channels // op.groups, 3, 3


def default(op: Conv2d, size: int, cpu: Cpu, vectors: int | None = None, padded: int | None = None) -> dict[str, int]:
    """The parameters of the best estimate for tiles of this size, and if given this layout."""
    problem = winograd_plan.problem_of(op, size, cpu)
    found = winograd_plan.blocking(problem, cpu, vectors=vectors, padded=padded)
    layout = {"block": problem.lanes, "size": size, "vectors": found.vectors, "padded": found.tiles * found.tasks}
    return {**layout, "rows": found.rows, "tasks": found.tasks, "chunks": found.chunks}


def primfunc(op: Conv2d, parameters: Mapping[str, int], cpu: Cpu) -> Any:
    """A convolution with a residual and a relu."""
    plan, lanes = planning.planned(op, "cpu.winograd", parameters, cpu), cpu.lanes(32)
    data = te.placeholder((op.batch, -(-op.channels // lanes), op.height, op.width, lanes), name="data")
    packed = planning.pack(plan, np.zeros(weight_shape(op), "float32"))
    weight = te.placeholder(packed.shape, name="weight")
    result = planning.computation(plan)(data, weight)
    residual = te.placeholder(result.shape, name="residual")
    added = te.compute(result.shape, lambda *i: result(*i) + residual(*i), name="add")
    relu = te.compute(result.shape, lambda *i: te.max(added(*i), 0.0), name="relu")
    return te.create_prim_func([data, weight, residual, relu])


def direct(data: Array, weight: Array, padding: tuple[int, ...], groups: int) -> Array:
    """The convolution of a blocked image with `OIHW`, in float64, as NCHW."""
    batch, blocks, height, width, lanes = data.shape
    plain = data.transpose(0, 1, 4, 2, 3).reshape(batch, blocks * lanes, height, width)[:, : weight.shape[1] * groups]
    parts = zip(np.split(plain, groups, 1), np.split(weight, groups), strict=True)
    return np.concatenate([_direct(image, taps, padding) for image, taps in parts], 1)


def _direct(plain: Array, weight: Array, padding: tuple[int, ...]) -> Array:
    top, left, bottom, right = padding
    plain = np.pad(plain.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    rows, columns = plain.shape[2] - 2, plain.shape[3] - 2
    taps = itertools.product(range(3), range(3))
    return sum(
        np.einsum("nchw,oc->nohw", plain[:, :, r : r + rows, q : q + columns], weight[:, :, r, q].astype(np.float64))
        for r, q in taps
    )


def agree(name: str, op: Conv2d, parameters: Mapping[str, int]) -> None:
    """The template computes the convolution, residual and relu included."""
    target = to_tvm(resolve(name))
    cpu = cpu_of(target)
    func = primfunc(op, parameters, cpu)
    found = Winograd().apply(func, target)
    assert isinstance(found, Schedule), found
    rng = np.random.default_rng(5)
    shapes = [tuple(int(d) for d in p.shape) for p in func.params]
    data, _, residual, result = (rng.standard_normal(shape).astype("float32") for shape in shapes)
    weight = rng.standard_normal(weight_shape(op)).astype("float32")
    plan = planning.planned(op, "cpu.winograd", parameters, cpu)
    arrays = [data, planning.pack(plan, weight), residual, result]
    tensors = [guarded_tensor(array, "end") for array in arrays]
    scheduled = found.func.with_attr("tirx.is_scheduled", True)
    tirx.build(tvm.IRModule({"main": scheduled}), target, pipeline=pipeline.NAME)["main"](*tensors)
    want = direct(data, weight, op.padding, op.groups)
    rows, columns = op.result
    got, added = (
        array.transpose(0, 1, 4, 2, 3).reshape(op.batch, -1, rows, columns)[:, : op.filters]
        for array in (tensors[-1].numpy(), residual)
    )
    want = np.maximum(want + added, 0)
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def buffers(found: Schedule) -> str:
    """The kernel's text with each buffer as large as a task needs it."""
    passes = tvm.s_tir.transform
    steps = [passes.PlanAndUpdateBufferAllocationLocation(), passes.ConvertBlocksToOpaque()]
    module = tvm.ir.transform.Sequential([*steps, passes.CompactBufferAllocation()])(tvm.IRModule({"main": found.func}))
    return str(module.script())


@pytest.mark.slow
def test_a_task_that_spans_images(monkeypatch) -> None:
    """56 tiles in a task, 196 in an image: TVM takes such bindings for non-affine, and refused to vectorize.

    No plan has such tasks, as TVM then computes both images for each, and nothing can be prefetched.
    """
    op = operator((8, 16, 56, 56), 32)
    tiles = {"size": 4, "vectors": 1, "padded": 1568, "rows": 14, "tasks": 28, "chunks": 1}
    parameters = {"block": lanes_of("auto"), **tiles}
    assert "neither a part of an image nor whole ones" in winograd_plan.refusal(
        op, parameters, cpu_of(to_tvm(resolve("auto")))
    )
    monkeypatch.delenv(STRICT)
    agree("auto", op, parameters)


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "auto"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("image", "padding"),
    [
        ((1, 20, 1, 1), SAME),
        ((1, 16, 3, 7), SAME),
        ((2, 33, 13, 31), (0, 1, 2, 1)),
        ((3, 7, 8, 12), NO_PADDING),
        ((1, 31, 4, 4), (3, 0, 0, 3)),
    ],
)
def test_awkward_shapes(name: str, size: int, image: tuple[int, ...], padding: Any) -> None:
    op = operator(image, 2 * lanes_of(name) + 1, padding)
    cpu = cpu_of(to_tvm(resolve(name)))
    agree(name, op, default(op, size, cpu))


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("chunks", [1, 2, 3, 6, 12])
@pytest.mark.parametrize(("size", "batch"), [(2, 1), (4, 2)])
def test_groups(size: int, batch: int, chunks: int) -> None:
    """Six groups of 16 channels into 32: chunks are groups, several of them, or parts of one."""
    op, cpu = operator((batch, 96, 7, 9), 192, groups=6), cpu_of(to_tvm(resolve("x86-64-v3")))
    point = default(op, size, cpu, vectors=2) | {"chunks": chunks}
    assert winograd_plan.refusal(op, point, cpu) == ""
    agree("x86-64-v3", op, point)


def test_a_chunk_is_whole_groups_or_a_part_of_one() -> None:
    op, cpu = operator((1, 96, 7, 9), 192, groups=6), CPUS["x86-64-v3"]
    point = default(op, 2, cpu, vectors=2)
    assert winograd_plan.refusal(op, point | {"chunks": 4}, cpu) == "chunks do not divide the channels"
    across = point | {"vectors": 3, "rows": 1}
    assert winograd_plan.refusal(op, across, cpu) == "vectors do not divide the channels of a group"


def test_a_chunk_of_groups_transforms_its_own_channels() -> None:
    target = to_tvm(resolve("x86-64-v3"))
    op, cpu = operator((1, 96, 8, 8), 96, groups=6), cpu_of(target)
    point = default(op, 4, cpu, vectors=2, padded=4) | {"chunks": 3, "tasks": 1}
    found = Winograd().apply(primfunc(op, point, cpu), target)
    assert isinstance(found, Schedule)
    assert "winograd_data = T.sblock_alloc_buffer((4, 6, 6, 4, 8))" in buffers(found)  # two groups of 16


@pytest.mark.parametrize(("padded", "vectors"), [(49, 1), (50, 2), (56, 4), (60, 1)])
def test_tiles_past_the_last_are_dropped(padded: int, vectors: int) -> None:
    op, cpu = operator((1, 16, 14, 14), 32), cpu_of(to_tvm(resolve("x86-64-v3")))
    agree("x86-64-v3", op, default(op, 2, cpu, vectors, padded))


@pytest.mark.sampled("image0-F2")
@pytest.mark.parametrize("size", [2, 4], ids=["F2", "F4"])
@pytest.mark.parametrize("image", [(1, 24, 8, 13), (1, 24, 9, 11), (2, 24, 14, 14)])
def test_any_point_is_right(size: int, image: tuple[int, ...]) -> None:
    op, cpu = operator(image, 64), cpu_of(to_tvm(resolve("x86-64-v3")))
    points = [point for point in winograd_plan.points(op, cpu) if point["size"] == size]
    assert {winograd_plan.refusal(op, point, cpu) for point in points} == {""}
    for point in random.Random(size).sample(points, 4):
        agree("x86-64-v3", op, point)


def test_one_parallel_loop_holds_every_stage_and_its_part_of_the_buffers() -> None:
    target = to_tvm(resolve("x86-64-v4"))
    tiles = {"block": 16, "size": 4, "vectors": 2, "padded": 196, "rows": 14, "tasks": 7, "chunks": 1}
    found = Winograd().apply(primfunc(operator((1, 64, 56, 56), 64), tiles, cpu_of(target)), target)
    assert isinstance(found, Schedule)
    loops = tir.collect(found.func.body, tirx.For)
    parallel = [loop for loop in loops if loop.kind == tirx.ForKind.PARALLEL]
    assert [tir.as_int(loop.extent) for loop in parallel] == [7]
    names = [realize.block.name_hint for realize in block_realizes(parallel[0])]
    stages = ["winograd_rows", "winograd_data", "winograd_init", "winograd_update", "winograd_products"]
    assert names == [*stages, "winograd_columns", "winograd_tiles", "relu"]
    text = buffers(found)
    assert "winograd_data = T.sblock_alloc_buffer((4, 6, 6, 28, 16))" in text  # V of 28 tiles
    assert "winograd_products = T.sblock_alloc_buffer((6, 6, 28, 2, 16))" in text  # M of a panel
    assert 'T.sblock_alloc_buffer((1, 1, 14, 2, 16), scope="local")' in text  # the register tile


@pytest.mark.sampled("aarch64")
@pytest.mark.parametrize("name", ["aarch64", "znver4", "x86-64-v4"])
def test_other_targets_compile(name: str) -> None:
    lanes, cpu = lanes_of(name), cpu_of(to_tvm(resolve(name)))
    op = operator((1, 2 * lanes, 6, 9), 2 * lanes)
    func = primfunc(op, default(op, 4, cpu, 2, 6), cpu)
    found = Winograd().apply(func, to_tvm(resolve(name)))
    assert isinstance(found, Schedule)
    module = tvm.IRModule({"main": found.func.with_attr("tirx.is_scheduled", True)})
    assert tirx.build(module, to_tvm(resolve(name)), pipeline=pipeline.NAME).inspect_source("asm")


def test_what_it_declines() -> None:
    data, other = (te.placeholder((8, 8), name=name) for name in "ab")
    k = te.reduce_axis((0, 8), name="k")
    product = te.compute((8, 8), lambda i, j: te.sum(data[i, k] * other[k, j], axis=k), name="winograd")
    copied = te.compute((8, 8), lambda i, j: product[i, j], name="copy")
    for result in (product, copied):
        found = Winograd().apply(te.create_prim_func([data, other, result]), to_tvm(resolve("x86-64-v3")))
        assert isinstance(found, Declined) and found.reason


@pytest.mark.parametrize("image", [(8, 16, 112, 112), (1, 512, 7, 7), (1, 16, 1, 1)])
@pytest.mark.parametrize("size", [2, 4])
def test_the_default_is_a_point(image: tuple[int, ...], size: int) -> None:
    op, cpu = operator(image, 32), CPUS["x86-64-v4"]
    point = default(op, size, cpu)
    assert winograd_plan.refusal(op, point, cpu) == ""
    assert point in winograd_plan.points(op, cpu)


def test_parameters_outside_the_space_are_refused() -> None:
    op, target = operator((1, 16, 8, 8), 16), to_tvm(resolve("x86-64-v4"))
    point = default(op, 4, cpu_of(target), 1, 4)
    with pytest.raises(ValueError, match="tasks"):
        Winograd().apply(primfunc(op, point, cpu_of(target)), target, {**point, "tasks": 3})


@pytest.mark.parametrize("row", CPUS)
@pytest.mark.parametrize("size", [2, 4])
def test_a_plan_fits_the_registers_and_is_found_again(row: str, size: int) -> None:
    cpu = CPUS[row]
    lanes = cpu.lanes(32)
    for tiles, channels in ((1, 64), (16, 512), (49, 96), (196, 64), (3136, 32)):
        problem = Problem(size, tiles, channels, channels // lanes, lanes, 1, 4)
        found = blocking(problem, cpu)
        assert found.tiles * found.tasks >= tiles
        assert found.tiles % found.rows == 0
        assert found.rows * found.vectors + found.vectors + 1 <= cpu.vector_registers
        again = blocking(problem, cpu, vectors=found.vectors, padded=found.tiles * found.tasks)
        assert again.cycles == found.cycles


@pytest.mark.sampled(most=9)
@pytest.mark.parametrize("row", CPUS)
def test_a_search_that_ends_early_finds_what_one_of_all_finds(row: str) -> None:
    cpu = CPUS[row]
    lanes = cpu.lanes(32)
    shapes = [
        (1, 64, 1, 1),
        (49, 512, 1, 1),
        (196, 96, 1, 3),
        (4 * 196, 256, 4, 1),
        (3136, 64, 1, 2),
        (16, 1024, 1, 32),
    ]
    for size, (tiles, channels, images, groups) in itertools.product((2, 4), shapes):
        depth, blocks = max(lanes, channels // groups), groups * -(-channels // groups // lanes)
        problem = Problem(size, tiles, depth, blocks, lanes, images, 4, groups)
        every = list(winograd_plan._blockings(problem, cpu))
        assert blocking(problem, cpu) == min(every, key=lambda each: (each.cycles, each.tiles, each.chunks))
        for each in every:
            least = winograd_plan._least_cycles(problem, cpu, each.rows, each.vectors, each.tiles, each.tasks)
            assert least < each.cycles


def test_estimates_grow_with_the_work() -> None:
    cpu = CPUS["x86-64-v4"]
    cycles = [blocking(Problem(4, tiles, 64, 4, 16, 1, 4), cpu).cycles for tiles in (4, 16, 196, 3136)]
    assert cycles == sorted(cycles)
    small, large = (operator((1, 512, size, size), 512) for size in (7, 14))
    assert direct_cycles(small, cpu) < direct_cycles(large, cpu)
