"""Quotients of sizes and of what loops count are the processor's; those of data, and of what may be negative, stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te, tirx, topi
from tvm.script import tirx as T

from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.lowering.truncate_quotients import TruncateQuotients


@T.prim_func
def moved(a: T.handle, b: T.handle, k: T.int64, half: T.int64):
    n, m = T.int64(), T.int64()
    x = T.match_buffer(a, (n, m, half // 2), "int64")
    y = T.match_buffer(b, (n * m,), "int64")
    for i in range(n * m):
        y[i] = x[i // m % n, i % m, half // n % (half // 2)] // n + (i - 3) // n + i // k


def test_quotients_of_sizes_alone() -> None:
    text = str(TruncateQuotients()(tvm.IRModule({"main": moved}))["main"].script())
    assert (
        "x[T.truncmod(T.Div(i, m), n), T.truncmod(i, m), T.truncmod(T.Div(half, n), T.Div(half, T.int64(2)))] // n"
        in text
    )
    assert "(i - T.int64(3)) // n + i // k" in text


def test_the_numbers_are_the_same() -> None:
    pipeline.register()
    library = tvm.tirx.build(moved.with_attr("global_symbol", "main"), to_tvm(resolve("auto")), pipeline=pipeline.NAME)
    for n, width in ((1, 1), (3, 5), (7, 2)):
        x: Any = np.random.default_rng(0).integers(-50, 50, (n, width, 1))
        got = tvm.runtime.tensor(np.zeros(n * width, "int64"))
        library["main"](tvm.runtime.tensor(x), got, -2, 2)
        i = np.arange(n * width)
        np.testing.assert_array_equal(got.numpy(), x.reshape(-1) // n + (i - 3) // n + i // -2)


def test_pixels_unshuffled_at_any_size_are_a_short_kernel() -> None:
    """torch's sizes of it are `h // (h // 2)`: of three copies of each dividend LLVM had enough for minutes."""

    h, w = (tirx.Var(name, "int64") for name in "hw")
    x = te.placeholder((3, h, w), "float32", "x")
    moved = topi.reshape(x, (3, h // (h // 2), h // 2, w // (w // 2), w // 2))
    func = te.create_prim_func([x, moved]).with_attr("global_symbol", "main")
    func = func.with_attr("tirx.noalias", True)
    pipeline.register()
    library = tvm.tirx.build(func, to_tvm(resolve("auto")), pipeline=pipeline.NAME)
    assert library.inspect_source("ll").count(" select ") < 10
    given = np.random.default_rng(0).standard_normal((3, 8, 6)).astype("float32")
    got = tvm.runtime.tensor(np.zeros((3, 2, 4, 2, 3), "float32"))
    library["main"](tvm.runtime.tensor(given), got)
    np.testing.assert_array_equal(got.numpy(), given.reshape(3, 2, 4, 2, 3))
