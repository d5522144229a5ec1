"""A loop that adds to memory does so in a local tile, and computes what it did."""
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from relaxc.schedules.strict import STRICT
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.accumulate import AccumulateLocally
from relaxc.service.lowering.target import resolve, to_tvm


@T.prim_func(s_tir=True)
def product(a: T.Buffer((32,), "float32"), p: T.Buffer((128,), "float32"), c: T.Buffer((64,), "float32")):
    for row in T.serial(2):
        for k in T.serial(8, annotations={"relaxc.accumulate_locally": 1}):
            for i in T.unroll(2):
                for n in T.vectorized(16):
                    c[(row * 2 + i) * 16 + n] += a[(row * 2 + i) * 8 + k] * p[k * 16 + n]


def transformed(func) -> str:
    return AccumulateLocally()(tvm.IRModule({"main": func}))["main"].script()


def test_the_loop_works_on_a_local_tile() -> None:
    text = transformed(product)
    assert "relaxc.accumulate_locally" not in text
    assert text.count("c_tile = T.alloc_local((32,))") == 1
    assert "c_tile[i * 16 + n] = c_tile[i * 16 + n] + a[(row * 2 + i) * 8 + k] * p[k * 16 + n]" in text
    assert text.count("c[(row * 2 + i) * 16 + n] = c_tile[i * 16 + n]") == 1


def test_a_condition_keeps_the_sums_in_memory(monkeypatch) -> None:
    @T.prim_func(s_tir=True)
    def guarded(a: T.Buffer((8,), "float32"), c: T.Buffer((12,), "float32")):
        for k in T.serial(8, annotations={"relaxc.accumulate_locally": 1}):
            for n in T.vectorized(16):
                if n < 12:
                    c[n] += a[k]

    with pytest.raises(RuntimeError, match="has a condition or two stores"):
        transformed(guarded)
    monkeypatch.delenv(STRICT)
    text = transformed(guarded)
    assert "tile" not in text
    assert "relaxc.accumulate_locally" not in text


def test_it_changes_no_result() -> None:
    pipeline.register()
    func = product.with_attr({"tirx.is_scheduled": True, "global_symbol": "main"})
    built = tirx.build(tvm.IRModule({"main": func}), to_tvm(resolve("x86-64-v3")), pipeline="relaxc")
    rng = np.random.default_rng(0)
    a, p, c = (rng.standard_normal(shape, dtype="float32") for shape in ((4, 8), (8, 16), (4, 16)))
    out = tvm.runtime.tensor(c.ravel())
    built["main"](tvm.runtime.tensor(a.ravel()), tvm.runtime.tensor(p.ravel()), out)
    np.testing.assert_allclose(out.numpy().reshape(4, 16), c + a @ p, rtol=1e-5, atol=1e-5)
