"""Depthwise convolution on blocked layouts: the form of the loops, and that it computes what numpy does."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.conv.depthwise_blocked import DepthwiseBlocked
from relaxc.schedules.cpu.conv.depthwise_compute import depthwise_conv2d
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.operators import Depthwise2d
from relaxc.schedules.plan import Plan
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from tests.guarded import guarded_tensor

pytestmark = pytest.mark.sampled

pipeline.register()
RULE = DepthwiseBlocked()
TARGETS = ["x86-64-v2", "x86-64-v3", "auto"]
Array = np.ndarray[Any, Any]


def lanes_of(name: str) -> int:
    return cpu_of(to_tvm(resolve(name))).lanes(32)


def operator(channels: int, size: tuple[int, int], kernel: int, batch: int = 1, **more: Any) -> Depthwise2d:
    height, width = size
    return Depthwise2d(batch=batch, channels=channels, height=height, width=width, kernel=(kernel, kernel), **more)


def planned(op: Depthwise2d, lanes: int) -> Plan:
    """Its default plan for the vectors of this width."""
    name = next(name for name in (*TARGETS, "x86-64-v4") if lanes_of(name) == lanes)
    return planning.default(op, cpu_of(to_tvm(resolve(name))))


def convolution(
    lanes: int, size: tuple[int, int], kernel: int, epilogue: str = "none", batch: int = 1, **geometry: Any
):
    """A PrimFunc of a depthwise convolution of two channel blocks."""
    op = operator(2 * lanes, size, kernel, batch, **geometry)
    data = te.placeholder((batch, 2, *size, lanes), name="data")
    weight = te.placeholder((2, kernel, kernel, lanes), name="weight")
    out = depthwise_conv2d(data, weight, plan=planned(op, lanes))
    if epilogue == "silu":
        out = te.compute(out.shape, lambda *i: out[i] * te.sigmoid(out[i]), name="silu")
    if epilogue == "residual":
        other = te.placeholder(out.shape, name="other")
        added = te.compute(out.shape, lambda *i: te.max(out[i] + other[i], 0.0), name="relu")
        return te.create_prim_func([data, weight, other, added])
    return te.create_prim_func([data, weight, out])


def inputs(func: Any) -> list[Array]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal([int(n) for n in p.shape]).astype("float32") for p in func.params]


def run(func: Any, target: Any, arrays: list[Array]) -> Array:
    tensors = [guarded_tensor(array, "end") for array in arrays]
    func = func.with_attr("tirx.is_scheduled", True)
    tirx.build(tvm.IRModule({"main": func}), target, pipeline=pipeline.NAME)["main"](*tensors)
    return tensors[-1].numpy()


def reference(data: Array, weight: Array, out: Array, strides, padding, dilation) -> Array:
    """The convolution, tap by tap, in double precision."""
    top, left, bottom, right = padding
    padded = np.pad(data.astype("float64"), [(0, 0), (0, 0), (top, bottom), (left, right), (0, 0)])
    total = np.zeros(out.shape)
    height, width = ((n - 1) * s + 1 for n, s in zip(out.shape[2:4], strides, strict=True))
    for r, q in itertools.product(range(weight.shape[1]), range(weight.shape[2])):
        y, x = r * dilation[0], q * dilation[1]
        taps = padded[:, :, y : y + height : strides[0], x : x + width : strides[1]]
        total += taps * weight[None, :, r, q, None, None]
    return total


GEOMETRIES: list[tuple[tuple[int, int], int, dict[str, Any]]] = [
    ((1, 1), 3, {"padding": (1, 1, 1, 1)}),
    ((3, 7), 3, {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
    ((13, 31), 5, {"padding": (2, 2, 2, 2)}),
    ((13, 31), 5, {"padding": (1, 1, 2, 2), "strides": (2, 2)}),
    ((31, 40), 7, {"padding": (3, 3, 3, 3)}),
    ((9, 37), 3, {"padding": (2, 2, 2, 2), "dilation": (2, 2)}),
    ((9, 19), 3, {}),
    ((8, 37), 3, {"padding": (0, 7, 7, 0), "strides": (1, 2)}),
    ((11, 33), 11, {"padding": (5, 5, 5, 5)}),
    ((1, 100), 1, {}),
]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("size", "kernel", "geometry"), GEOMETRIES)
def test_awkward_shapes(name: str, size: tuple[int, int], kernel: int, geometry: dict[str, Any]) -> None:
    target = to_tvm(resolve(name))
    func = convolution(lanes_of(name), size, kernel, **geometry)
    found = RULE.apply(func, target)
    assert isinstance(found, Schedule), found
    data, weight, out = inputs(func)
    full = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), **geometry}
    want = reference(data, weight, out, **full)
    np.testing.assert_allclose(run(found.func, target, [data, weight, out]), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("size", "kernel", "geometry"), GEOMETRIES)
def test_channels_last(name: str, size: tuple[int, int], kernel: int, geometry: dict[str, Any]) -> None:
    target, channels = to_tvm(resolve(name)), 3 * lanes_of(name)
    full = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), **geometry}
    data = te.placeholder((2, *size, channels), name="data")
    weight = te.placeholder((kernel, kernel, channels), name="weight")
    plan = planned(operator(channels, size, kernel, 2, channels_last=True, **geometry), lanes_of(name))
    func = te.create_prim_func([data, weight, depthwise_conv2d(data, weight, plan=plan)])
    found = RULE.apply(func, target)
    assert isinstance(found, Schedule), found
    arrays = inputs(func)
    blocked = [np.moveaxis(arrays[0], -1, 1)[..., None], arrays[1].transpose(2, 0, 1)[..., None]]
    want = reference(*blocked, np.moveaxis(arrays[2], -1, 1)[..., None], **full)
    np.testing.assert_allclose(run(found.func, target, arrays), np.moveaxis(want[..., 0], 1, -1), rtol=1e-4, atol=1e-4)


def test_channels_that_do_not_fill_vectors_are_refused() -> None:
    op, cpu = operator(12, (9, 9), 3, channels_last=True), cpu_of(to_tvm(resolve("x86-64-v3")))
    assert "vectors" in planning.refusal(op, RULE.name, planning.default(op, cpu).parameters, cpu)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("epilogue", ["silu", "residual"])
@pytest.mark.parametrize("batch", [1, 3])
def test_any_choice_is_right(epilogue: str, batch: int) -> None:
    target = to_tvm(resolve("auto"))
    func = convolution(lanes_of("auto"), (8, 22), 3, epilogue, batch, padding=(1, 1, 1, 1))
    space = RULE.points(func, target)
    assert not isinstance(space, Declined)
    arrays = inputs(func)
    want = run(func, target, arrays)
    for point in random.Random(0).sample(space.listed, 8):
        found = RULE.apply(func, target, point)
        assert isinstance(found, Schedule)
        np.testing.assert_allclose(run(found.func, target, arrays), want, rtol=1e-5, atol=1e-5)


def script(func: Any, name: str = "x86-64-v4", **parameters: int) -> str:
    target = to_tvm(resolve(name))
    found = RULE.apply(func, target, parameters or None)
    assert isinstance(found, Schedule), found
    return str(found.func.script())


def test_rows_of_padding_are_skipped_and_columns_of_it_are_not_in_the_hot_loop() -> None:
    func = convolution(16, (56, 56), 3, "residual", padding=(1, 1, 1, 1))
    text = script(func, block=16, columns=14, strips=2, staged=0)
    assert "for ax5 in range(3):\n                    if 1 <= " in text
    assert "T.if_then_else(1 <= v_w + v_q and v_w + v_q < 57, " in text
    assert "T.serial(4, annotations={'pragma_loop_partition_hint'" in text.replace('"', "'")
    assert text.count("T.vectorized(16)") == 3


def test_an_epilogue_with_functions_is_a_loop_and_a_cheap_one_is_unrolled() -> None:
    target = to_tvm(resolve("x86-64-v4"))
    for name, staged in (("silu", 1), ("residual", 0), ("none", 0)):
        func = convolution(16, (14, 14), 5, name)
        found = RULE.apply(func, target)
        assert isinstance(found, Schedule)
        same, other = (RULE.apply(func, target, {**found.parameters, "staged": each}) for each in (staged, 1 - staged))
        assert isinstance(same, Schedule) and isinstance(other, Schedule)
        assert tvm_ffi.structural_equal(found.func, same.func)
        assert not tvm_ffi.structural_equal(found.func, other.func)


@pytest.mark.parametrize(
    ("name", "width", "kernel", "columns"),
    [("x86-64-v4", 112, 3, 16), ("x86-64-v4", 56, 7, 14), ("x86-64-v3", 56, 3, 8), ("x86-64-v2", 7, 5, 7)],
)
def test_the_tile_fits_the_registers(name: str, width: int, kernel: int, columns: int) -> None:
    func = convolution(lanes_of(name), (9, width + kernel - 1), kernel)
    found = RULE.apply(func, to_tvm(resolve(name)))
    assert isinstance(found, Schedule)
    assert found.parameters["columns"] == columns


def test_what_it_declines_and_refuses() -> None:
    a = te.placeholder((8, 8), name="a")
    plain = te.create_prim_func([a, te.compute((8, 8), lambda i, j: a[i, j] + 1.0, name="add")])
    assert isinstance(RULE.apply(plain, to_tvm(resolve("x86-64-v3"))), Declined)
    with pytest.raises(ValueError, match="columns"):
        RULE.apply(
            convolution(8, (4, 9), 3),
            to_tvm(resolve("x86-64-v3")),
            {"block": 8, "columns": 99, "strips": 1, "staged": 0},
        )


def test_it_compiles_for_neon() -> None:
    target = to_tvm(resolve("aarch64"))
    found = RULE.apply(convolution(4, (14, 28), 3, "silu", padding=(1, 1, 1, 1)), target)
    assert isinstance(found, Schedule)
    func = found.func.with_attr("tirx.is_scheduled", True)
    assert "fmla" in tirx.build(tvm.IRModule({"main": func}), target, pipeline=pipeline.NAME).inspect_source("asm")
