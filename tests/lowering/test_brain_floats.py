"""Values rounded to bfloat16, by an instruction and by arithmetic, and buffers of them within a kernel."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from relaxc.service.lowering import pipeline
from relaxc.service.lowering.brain_floats import KeepBrainFloats
from relaxc.service.lowering.target import host_features, resolve, to_tvm

pipeline.register()
NEEDED = pytest.mark.skipif("avx512bf16" not in host_features(), reason="needs avx512bf16")
TARGETS = [pytest.param("auto", marks=NEEDED), "x86-64-v3"]
EDGES = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1.00390625, 1.01171875, 65504.0, 1e-30]


def built(result: te.Tensor, data: te.Tensor, target: str, *, lanes: int = 16, loops: tuple[str, ...] = ()) -> Any:
    """The kernel with its blocks in vectors, where their sizes allow for that."""
    sch = s_tir.Schedule(te.create_prim_func([data, result]))
    for name in loops:
        _outer, inner = sch.split(sch.get_loops(name)[-1], [None, lanes])
        sch.vectorize(inner)
    func = sch.mod["main"].with_attr("tirx.is_scheduled", True)
    return tirx.build(tvm.IRModule({"main": func}), to_tvm(resolve(target)), pipeline=pipeline.NAME)


def called(module: Any, array: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    out = tvm.runtime.tensor(np.zeros(array.shape, dtype))
    module["main"](tvm.runtime.tensor(array), out)
    return out.numpy()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("loops", [(), ("rounded",)])
def test_rounding_is_to_nearest_even(target: str, loops: tuple[str, ...]) -> None:
    drawn = np.random.default_rng(0).standard_normal(96 - len(EDGES)) * 1e3
    array = np.concatenate([EDGES, drawn]).astype("float32")
    data = te.placeholder(array.shape, name="x")
    result = te.compute(array.shape, lambda i: data[i].astype("bfloat16"), name="rounded")
    found = called(built(result, data, target, loops=loops), array, ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.astype("float32"), array.astype(ml_dtypes.bfloat16).astype("float32"))


@NEEDED
def test_a_vector_is_rounded_by_one_instruction() -> None:
    data = te.placeholder((64,), name="x")
    result = te.compute((64,), lambda i: data[i].astype("bfloat16"), name="rounded")
    code = built(result, data, "auto", loops=("rounded",)).inspect_source("asm")
    assert "vcvtneps2bf16" in code


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_number_is_stored_to_all_lanes(target: str, dtype: str) -> None:
    array = np.array([1.00390625, -2.5, np.nan, 3.0]).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    data = te.placeholder((4,), dtype, name="x")
    result = te.compute((4, 32), lambda i, j: data[i].astype("bfloat16"), name="spread")
    out = tvm.runtime.tensor(np.zeros((4, 32), ml_dtypes.bfloat16))
    built(result, data, target, loops=("spread",))["main"](tvm.runtime.tensor(array), out)
    want = np.repeat(array[:, None], 32, 1).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(out.numpy().astype("float32"), want.astype("float32"))


@pytest.mark.parametrize("target", TARGETS)
def test_a_buffer_within_a_kernel_stays_in_16_bits(target: str) -> None:
    """It is padded with zeros, and what is in it is not rounded twice."""
    array = np.random.default_rng(0).standard_normal(32).astype(ml_dtypes.bfloat16)
    data = te.placeholder((32,), "bfloat16", name="x")

    def inside(i: Any) -> Any:
        return te.if_then_else(te.all(i >= 8, i < 40), data[i - 8], tirx.const(0, "bfloat16"))

    padded = te.compute((48,), inside, name="pad")
    result = te.compute((32,), lambda i: padded[i + 2].astype("float32"), name="moved")
    module = built(result, data, target, loops=("moved",))
    want = np.pad(array.astype("float32"), 8)[2:34]
    np.testing.assert_array_equal(called(module, array, "float32"), want)


def test_what_has_none_of_them_is_left_alone() -> None:
    data = te.placeholder((32,), name="x")
    result = te.compute((32,), lambda i: data[i] + 1.0, name="more")
    assert "bfloat" not in built(result, data, "x86-64-v4").inspect_source("ll")


def test_a_size_that_is_passed_is_no_buffer() -> None:
    size = tirx.Var("n", "int64")
    data = te.placeholder((32,), name="x")
    result = te.compute((32,), lambda i: data[i] + tirx.Cast("float32", size), name="more")
    func = te.create_prim_func([data, result, size]).with_attr("target", to_tvm(resolve("x86-64-v4")))
    assert KeepBrainFloats()(tvm.IRModule({"main": func}))
