"""A loop over tiles fetches the next panel, a slice with each step, and computes what it did."""
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.moves import PREFETCH_AHEAD
from relaxc.schedules.strict import STRICT
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.prefetch import InsertPrefetches
from relaxc.service.lowering.target import resolve, to_tvm

PANELS, TILES, DEPTH, WIDTH = 3, 4, 8, 32


@T.prim_func(s_tir=True)
def product(a: T.Buffer((32,), "float32"), p: T.Buffer((768,), "float32"), c: T.Buffer((384,), "float32")):
    for panel in T.serial(3):
        for tile in T.serial(4, annotations={"relaxc.prefetch_ahead": [256, 256]}):
            for n in T.vectorized(32):
                c[(panel * 4 + tile) * 32 + n] = 0.0
            for k in T.serial(8):
                for n in T.vectorized(32):
                    c[(panel * 4 + tile) * 32 + n] += a[tile * 8 + k] * p[panel * 256 + k * 32 + n]


def transformed(func):
    return InsertPrefetches()(tvm.IRModule({"main": func}))["main"]


def prefetches(func) -> list[str]:
    return [str(call) for call in tir.collect(func.body, tvm.ir.Call) if "llvm.prefetch" in str(call)]


def test_every_step_fetches_its_share_of_the_next_panel() -> None:
    func = transformed(product)
    (call,) = prefetches(func)
    assert "p[panel * 256 + tile * 64 + k * 8 + 256]" in call
    assert PREFETCH_AHEAD not in str(func)


def test_the_fetched_addresses_cover_the_next_panel() -> None:
    fetched = {tile * 64 + k * 8 for tile in range(TILES) for k in range(DEPTH)}
    assert {address // 16 for address in fetched} == set(range(DEPTH * WIDTH // 16))


def test_tiles_that_have_a_line_each_fetch_it_once() -> None:
    """Not their steps, each of which would have a part of the line, and an address to compute."""
    (loop,) = (loop for loop in tir.collect(product.body, tirx.For) if loop.annotations)
    annotations = {PREFETCH_AHEAD: [256, 64]}
    less = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations=annotations)
    body = tvm_ffi.structural_map(product.body, (tirx.For, lambda each: less if each.same_as(loop) else each))
    func = transformed(product.with_body(body))
    (call,) = prefetches(func)
    assert "p[panel * 256 + tile * 16 + 256]" in call
    (steps,) = (loop for loop in tir.collect(func.body, tirx.For) if loop.loop_var.name == "k")
    assert "prefetch" not in str(steps)


def test_a_loop_without_a_stream_stays_as_it_is(monkeypatch) -> None:
    @T.prim_func(s_tir=True)
    def copy(a: T.Buffer((128,), "float32"), b: T.Buffer((128,), "float32")):
        for i in T.serial(8, annotations={"relaxc.prefetch_ahead": [16, 16]}):
            for j in T.serial(16):
                b[i * 16 + j] = a[i * 16 + j]

    with pytest.raises(RuntimeError, match="nothing is prefetched"):
        transformed(copy)
    monkeypatch.delenv(STRICT)
    func = transformed(copy)
    assert not prefetches(func)
    assert PREFETCH_AHEAD not in str(func)


def test_it_changes_no_result_and_prefetches_in_the_machine_code() -> None:
    target = to_tvm(resolve("x86-64-v3"))
    pipeline.register()
    func = product.with_attr({"tirx.is_scheduled": True, "global_symbol": "main"})
    built = tirx.build(tvm.IRModule({"main": func}), target, pipeline="relaxc")
    rng = np.random.default_rng(0)
    a, p = rng.standard_normal((4, 8), dtype="float32"), rng.standard_normal((3, 8, 32), dtype="float32")
    out = tvm.runtime.tensor(np.zeros(384, "float32"))
    built["main"](tvm.runtime.tensor(a.ravel()), tvm.runtime.tensor(p.ravel()), out)
    np.testing.assert_allclose(out.numpy().reshape(3, 4, 32), np.einsum("tk,pkn->ptn", a, p), rtol=1e-5, atol=1e-5)
    code = built.inspect_source("asm") if built.kind == "llvm" else built.imports[0].inspect_source("asm")
    assert "prefetcht1" in code


@T.prim_func(s_tir=True)
def stream(a: T.Buffer((64,), "float32"), p: T.Buffer((2048,), "int32"), c: T.Buffer((32,), "float32")):
    for step in T.serial(32, annotations={"relaxc.prefetch_stream": [1024, 64]}):
        for half in T.unroll(2):
            for n in T.vectorized(32):
                c[n] += a[step * 2 + half] * T.Cast("float32", p[step * 64 + half * 32 + n])


def test_a_stream_is_fetched_line_by_line_that_far_ahead() -> None:
    func = transformed(stream)
    calls = prefetches(func)
    assert [f"p[step * 64 + {1024 + line * 16}]" in call for line, call in enumerate(calls)] == [True] * 4
    assert "prefetch_stream" not in str(func)
