"""Vector loops with conditions: Before/Expected, and the values of loops that must stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.lowering.vector_tails import VersionVectorLoops

pipeline.register()


def versioned(func):
    return VersionVectorLoops()(tvm.IRModule({"main": func}))["main"]


def test_a_predicate_at_the_edge():
    @T.prim_func
    def before(a: T.Buffer((100,), "float32"), b: T.Buffer((100,), "float32")):
        for i in range(7):
            for lane in T.vectorized(16):
                if i * 16 + lane < 100:
                    b[i * 16 + lane] = a[i * 16 + lane]

    @T.prim_func
    def expected(a: T.Buffer((100,), "float32"), b: T.Buffer((100,), "float32")):
        for i in range(7):
            if i * 16 + 15 < 100:
                for lane in T.vectorized(16):
                    b[i * 16 + lane] = a[i * 16 + lane]
            else:
                for lane in range(16):
                    if i * 16 + lane < 100:
                        b[i * 16 + lane] = a[i * 16 + lane]

    def simplified(func):
        module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        return tvm.tirx.transform.StmtSimplify()(module)["main"]

    tvm.ir.assert_structural_equal(simplified(versioned(before)), simplified(expected))


def test_no_condition_no_change():
    @T.prim_func
    def before(a: T.Buffer((32,), "float32"), b: T.Buffer((32,), "float32"), n: T.int32):
        for i in range(2):
            for lane in T.vectorized(16):
                if i < n:
                    b[i * 16 + lane] = a[i * 16 + lane]

    tvm.ir.assert_structural_equal(versioned(before), before)


def test_an_if_in_an_expression_has_a_vector_version():
    assert "T.vectorized(16)" in versioned(padding).script()
    assert not versioned(padding).same_as(padding)
    assert versioned(padding).script().count("for lane in") == 2


def values(func, size: int = 64) -> np.ndarray:
    """What the PrimFunc writes for 1, 2, 3, …"""
    target = to_tvm(resolve("auto"))
    library = tvm.tirx.build(func.with_attr("global_symbol", "main"), target, pipeline=pipeline.NAME)
    a = np.arange(1, size + 1, dtype="float32")
    out = tvm.runtime.tensor(np.zeros(size, "float32"))
    library["main"](tvm.runtime.tensor(a), out)
    return out.numpy()


@T.prim_func
def padding(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    for i in range(4):
        for lane in T.vectorized(16):
            b[i * 16 + lane] = T.if_then_else(
                i * 16 + lane >= 3 and i * 16 + lane < 50, a[T.min(T.max(i * 16 + lane - 3, 0), 63)], T.float32(-1)
            )


@T.prim_func
def falling(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    for i in range(4):
        for lane in T.vectorized(16):
            b[i * 16 + lane] = T.if_then_else(63 - (i * 16 + lane) > 20, a[63 - (i * 16 + lane)], T.float32(-1))


@T.prim_func
def not_monotone(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    for i in range(4):
        for lane in T.vectorized(16):
            b[i * 16 + lane] = T.if_then_else(lane % 4 < 2, a[i * 16 + lane], T.float32(-1))


@T.prim_func
def of_the_data(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    for i in range(4):
        for lane in T.vectorized(16):
            b[i * 16 + lane] = T.if_then_else(a[i * 16 + lane] < T.float32(20), T.float32(7), a[i * 16 + lane])


@T.prim_func
def of_an_inner_loop(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    for lane in T.vectorized(16):
        for i in range(4):
            if i * 16 + lane < 40:
                b[i * 16 + lane] = a[i * 16 + lane]


@T.prim_func
def scaled(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    for i in range(4):
        for lane in T.vectorized(16):
            if (i * 16 + lane) // 3 * 2 <= 30 and 2 - (i * 16 + lane) < 5:
                b[i * 16 + lane] = a[i * 16 + lane]


def reference(name: str) -> np.ndarray:
    p = np.arange(64)
    a = p + 1.0
    return {
        "padding": np.where((p >= 3) & (p < 50), a[np.maximum(p - 3, 0)], -1),
        "falling": np.where(63 - p > 20, a[63 - p], -1),
        "not_monotone": np.where(p % 4 < 2, a, -1),
        "of_the_data": np.where(a < 20, 7, a),
        "of_an_inner_loop": np.where(p < 40, a, 0),
        "scaled": np.where(p // 3 * 2 <= 30, a, 0),
    }[name]


@pytest.mark.parametrize(
    "func", [padding, falling, not_monotone, of_the_data, of_an_inner_loop, scaled], ids=lambda f: f.__name__
)
def test_values(func):
    np.testing.assert_array_equal(values(func), reference(func.__name__))
