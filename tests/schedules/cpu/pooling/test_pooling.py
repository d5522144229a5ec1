"""Pooling on blocked layouts: windows and whole images against numpy, over awkward shapes and any choice."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.common.register_tile import divisors
from relaxc.schedules.cpu.pooling.pooling import Pooling
from relaxc.schedules.cpu.pooling.pooling_image import PoolingImage
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.ir.blocks import block_names
from relaxc.schedules.operators import Pool2d
from relaxc.schedules.plan import PLAN, Plan
from relaxc.schedules.planned import Planned
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm

pytestmark = pytest.mark.sampled

pipeline.register()
TARGETS = ["x86-64-v2", "x86-64-v3", "auto"]
Array = np.ndarray[Any, Any]


def lanes_of(name: str) -> int:
    return cpu_of(to_tvm(resolve(name))).lanes(32)


def image(lanes: int, size: tuple[int, int], batch: int = 1) -> te.Tensor:
    return te.placeholder((batch, 3, *size, lanes), name="data")


def plan_of(data: te.Tensor, name: str, strips: int | None = None, **how: Any) -> Plan:
    """The default plan of a pool of `data`; with `strips` for an image in these."""
    batch, blocks, height, width, lanes = (int(size) for size in data.shape)
    op = Pool2d(batch=batch, channels=blocks * lanes, height=height, width=width, **how)
    cpu = cpu_of(to_tvm(resolve(name)))
    plan = planning.default(op, cpu)
    if strips is None:
        return plan
    rows = divisors(height // strips, cpu.fma_in_flight)[-1]
    return planning.planned(op, plan.template, {**plan.parameters, "strips": strips, "rows": rows}, cpu)


def pooled(data: te.Tensor, name: str, strips: int | None = None, **how: Any) -> Any:
    plan = plan_of(data, name, strips, **how)
    return te.create_prim_func([data, planning.computation(plan)(data)])


def whole(data: te.Tensor, name: str, kind: str, strips: int) -> Any:
    height, width = (int(size) for size in data.shape[2:4])
    return pooled(data, name, strips, reduce=kind, whole=True, kernel=(height, width))


def run(func: Any, target: Any, data: Array) -> Array:
    out = tvm.runtime.tensor(np.zeros([int(n) for n in func.params[-1].shape], "float32"))
    func = func.with_attr("tirx.is_scheduled", True)
    library = tirx.build(tvm.IRModule({"main": func}), target, pipeline=pipeline.NAME)
    library["main"](tvm.runtime.tensor(data), out)
    return out.numpy()


def rule_of(func: Any) -> Planned[Pool2d]:
    return PoolingImage() if "pool_rows" in block_names(func) else Pooling()


def scheduled(func: Any, name: str, parameters: Any = None) -> Any:
    found = rule_of(func).apply(func, to_tvm(resolve(name)), parameters)
    assert isinstance(found, Schedule), found
    return found.func


def values(func: Any) -> Array:
    shape = [int(n) for n in func.params[0].shape]
    return np.random.default_rng(2).standard_normal(shape).astype("float32") - 1


def reference(data: Array, kind: str, kernel, strides, padding, dilation, count_include_pad: bool) -> Array:
    """The windows one by one."""
    top, left, bottom, right = padding
    around = [(0, 0), (0, 0), (top, bottom), (left, right), (0, 0)]
    filler = -np.inf if kind == "max" else 0.0
    padded = np.pad(data.astype("float64"), around, constant_values=filler)
    inside = np.pad(np.ones(data.shape), around, constant_values=float(count_include_pad))
    high, wide = (
        (n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(padded.shape[2:4], kernel, dilation, strides, strict=True)
    )
    out = np.zeros((*data.shape[:2], high, wide, data.shape[4]))
    for h, w in itertools.product(range(high), range(wide)):
        rows = slice(h * strides[0], h * strides[0] + (kernel[0] - 1) * dilation[0] + 1, dilation[0])
        columns = slice(w * strides[1], w * strides[1] + (kernel[1] - 1) * dilation[1] + 1, dilation[1])
        window = padded[:, :, rows, columns]
        count = inside[:, :, rows, columns].sum((2, 3))
        out[:, :, h, w] = window.max((2, 3)) if kind == "max" else window.sum((2, 3)) / count
    return out


GEOMETRIES: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((13, 31), {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}),
    ((7, 7), {"kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1)}),
    ((8, 37), {"kernel": (2, 2), "strides": (2, 2)}),
    ((9, 20), {"kernel": (3, 2), "strides": (1, 2), "padding": (0, 1, 2, 0)}),
    ((12, 33), {"kernel": (3, 3), "strides": (1, 1), "dilation": (2, 3)}),
    ((30, 31), {"kernel": (13, 13), "strides": (1, 1), "padding": (6, 6, 6, 6)}),
    ((3, 1), {"kernel": (1, 1), "strides": (2, 1)}),
    ((5, 5), {"kernel": (1, 3), "strides": (1, 1), "padding": (0, 1, 0, 1)}),
]


@pytest.mark.sampled(most=4)
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kind", ["max", "avg", "avg with padding"])
@pytest.mark.parametrize(("size", "geometry"), GEOMETRIES)
def test_windows(name: str, kind: str, size: tuple[int, int], geometry: dict[str, Any]) -> None:
    counts = kind == "avg with padding"
    full = {"padding": (0, 0, 0, 0), "dilation": (1, 1), **geometry, "kind": kind[:3], "count_include_pad": counts}
    func = pooled(
        image(lanes_of(name), size), name, reduce=kind[:3], counts_padding=kind == "avg with padding", **geometry
    )
    array = values(func)
    for place in (None, 0, array.size // 2 + 1, -1):
        if place is not None:
            array.reshape(-1)[place] = np.nan
        got = run(scheduled(func, name), to_tvm(resolve(name)), array)
        np.testing.assert_allclose(got, reference(array, **full), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(
    ("batch", "size", "strips"),
    [(1, (1, 1), 1), (1, (7, 7), 1), (1, (14, 13), 2), (3, (31, 5), 1), (2, (12, 100), 4)],
)
def test_images(name: str, kind: str, batch: int, size: tuple[int, int], strips: int) -> None:
    data = image(lanes_of(name), size, batch)
    func = whole(data, name, kind, strips)
    array = values(func)
    for place in (None, 0, -1):
        if place is not None:
            array.reshape(-1)[place] = np.nan
        want = (np.max if kind == "max" else np.mean)(array.astype("float64"), axis=(2, 3), keepdims=True)
        got = run(scheduled(func, name), to_tvm(resolve(name)), array)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled("images in strips")
@pytest.mark.parametrize("case", ["windows", "images", "images in strips"])
def test_any_choice_is_right(case: str) -> None:
    target, data = to_tvm(resolve("auto")), image(lanes_of("auto"), (12, 21), 2)
    if case == "windows":
        func = pooled(data, "auto", reduce="avg", kernel=(3, 3), padding=(1, 1, 1, 1))
    else:
        func = whole(data, "auto", "avg", 2 if case == "images in strips" else 1)
    space = rule_of(func).points(func, target)
    assert not isinstance(space, Declined)
    array = values(func)
    want = run(func, target, array)
    for point in random.Random(0).sample(space.listed, min(6, space.size)):
        np.testing.assert_allclose(run(scheduled(func, "auto", point), target, array), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TARGETS)
def test_the_largest_of_minus_infinity_is_minus_infinity(name: str) -> None:
    data = image(lanes_of(name), (8, 9))
    for func in (pooled(data, name, reduce="max", kernel=(3, 3), padding=(1, 1, 1, 1)), whole(data, name, "max", 1)):
        array = np.full_like(values(func), -np.inf)
        assert (run(scheduled(func, name), to_tvm(resolve(name)), array) == -np.inf).all()


def test_rows_of_padding_are_skipped() -> None:
    data = image(16, (56, 56))
    func = pooled(data, "x86-64-v4", reduce="max", kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    text = str(scheduled(func, "x86-64-v4").script())
    assert "if 1 <= " in text
    assert "T.if_then_else(1 <= v_w * 2 + v_q and v_w * 2 + v_q < 57, " in text


def test_rows_whose_padding_is_no_identity_are_not_skipped() -> None:
    data = te.placeholder((1, 1, 8, 8, 8), name="data")
    padded = te.compute(
        (1, 1, 10, 8, 8),
        lambda n, c, h, w, v: te.if_then_else(te.all(h >= 1, h < 9), data[n, c, h - 1, w, v], 1.0),
        name="pad",
    )
    r, q = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, 1), name="q")
    plan = plan_of(data, "x86-64-v3", reduce="avg", kernel=(3, 1), padding=(1, 0, 1, 0))

    def total(n: Any, c: Any, h: Any, w: Any, v: Any) -> Any:
        return te.sum(padded[n, c, h + r, w + q, v], axis=[r, q])

    sums = te.compute((1, 1, 8, 8, 8), total, name="pool2d", attrs={PLAN: plan.to_json()})
    func = te.create_prim_func([data, te.compute(sums.shape, lambda *i: sums[i], name="written")])
    target = to_tvm(resolve("x86-64-v3"))
    np.testing.assert_allclose(run(scheduled(func, "x86-64-v3"), target, values(func)), run(func, target, values(func)))


def test_what_it_declines() -> None:
    a = te.placeholder((8, 8), name="a")
    plain = te.create_prim_func([a, te.compute((8, 8), lambda i, j: a[i, j] + 1.0, name="add")])
    for rule in (Pooling(), PoolingImage()):
        found = rule.apply(plain, to_tvm(resolve("x86-64-v3")))
        assert isinstance(found, Declined)
        assert found.reason


def test_an_image_is_no_window_and_windows_are_no_image() -> None:
    data, cpu = image(8, (6, 6)), cpu_of(to_tvm(resolve("x86-64-v3")))
    windows = plan_of(data, "x86-64-v3", reduce="max", kernel=(2, 2), strides=(2, 2))
    all_of_it = plan_of(data, "x86-64-v3", reduce="max", kernel=(6, 6), whole=True)
    assert (windows.template, all_of_it.template) == ("cpu.pooling", "cpu.pooling_image")
    for plan, other in ((windows, all_of_it), (all_of_it, windows)):
        assert planning.refusal(plan.operator, other.template, other.parameters, cpu)
        assert {each.template for each in planning.space(plan.operator, cpu)} == {plan.template}


def test_strips_that_the_stages_do_not_have_are_refused() -> None:
    func = whole(image(8, (12, 5)), "x86-64-v3", "max", 2)
    with pytest.raises(ValueError, match="strips"):
        PoolingImage().apply(func, to_tvm(resolve("x86-64-v3")), {"block": 8, "strips": 3, "rows": 1})
