"""Integers of 32 bits wrap: their arithmetic is in 64, that of indices, loops and reductions is not."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import te, tirx

from relaxc.service.lowering.wrap_integers import WrapIntegers


def rewritten(*tensors: Any, kind: str = "llvm", bits: int = 32) -> str:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"} if kind == "cuda" else kind)
    made = te.create_prim_func(list(tensors), "int64").with_attr("target", target)
    return str(WrapIntegers(bits)(tvm.IRModule({"main": made}))["main"].script())


def test_arithmetic_of_data_is_wider() -> None:
    x = te.placeholder((8,), "int32", "x")
    found = rewritten(x, te.compute((8,), lambda i: x(i) * tirx.const(3, "int32") - x(7 - i)))
    assert found.count('T.Cast("int32"') == 2


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_arithmetic_of_casts_is_wider(dtype: str) -> None:
    """No parameter of such a kernel is int32."""
    x = te.placeholder((8,), dtype, "x")
    found = rewritten(x, te.compute((8,), lambda i: (x(i).astype("int32") + tirx.const(1, "int32")).astype("float32")))
    wider = 'T.Cast("int32", T.Cast("int64", T.Cast("int32", x[v_i])) + T.Cast("int64", 1))'
    assert wider in found.replace("v_i0", "v_i")


def test_casts_in_indices_and_sums_of_casts_stay() -> None:
    x, at = te.placeholder((8,), "float32", "x"), te.placeholder((8,), "int64", "at")
    one = tirx.const(1, "int32")
    found = rewritten(x, at, te.compute((8,), lambda i: (x(at(i) + 1).astype("int32") + one).astype("float32")))
    assert found.count("[at[v_i] + T.int64(1)]") == 2 and found.count('T.Cast("int64"') == 2
    a, b, k = te.placeholder((8,), "int8", "a"), te.placeholder((8,), "int8", "b"), te.reduce_axis((0, 8), "k")
    summed = te.sum(a(k).astype("int32") * b(k).astype("int32"), axis=k)
    assert "int64" not in rewritten(a, b, te.compute((1,), lambda i: summed)).replace("T.int64", "")


def test_what_binds_a_variable_may_be_there_twice() -> None:
    """TVM's lowering of a quotient has it so, and refused that its two were of two names."""
    x, name = te.placeholder((8,), "int64", "x"), tirx.Var("name", "int64")

    def element(i: Any) -> Any:
        bound = tirx.Let(name, x(i) + 1, name * name)
        return tirx.Select(x(i) > 0, bound, tirx.const(0, "int64") - bound)

    assert rewritten(x, te.compute((8,), element), bits=64).count("int128") > 2


def test_indices_and_what_loops_count_stay() -> None:
    x, at = te.placeholder((8,), "int32", "x"), te.placeholder((8,), "int64", "at")
    found = rewritten(x, at, te.compute((8,), lambda i: x(at(i) + 1) + tirx.const(1, "int32")))
    assert found.count('T.Cast("int32"') == 1 and "[at[v_i] + T.int64(1)]" in found.replace("v_i0", "v_i")
    assert "int64" not in rewritten(x, te.compute((8,), lambda i: i * 2 + 1)).split(" = ")[-1].replace("T.int64", "")


def test_reductions_floats_and_other_targets_stay() -> None:
    x, y = te.placeholder((8,), "int32", "x"), te.placeholder((8,), "float32", "y")
    k = te.reduce_axis((0, 8), "k")
    assert "T.Cast" not in rewritten(x, te.compute((1,), lambda i: te.sum(x(k), axis=k)))
    assert "T.Cast" not in rewritten(y, te.compute((8,), lambda i: y(i) + 1.0))
    assert "T.Cast" not in rewritten(x, te.compute((8,), lambda i: x(i) + tirx.const(1, "int32")), kind="cuda")


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_of_64_bits_are_wider_by_themselves(dtype: str) -> None:
    x = te.placeholder((8,), dtype, "x")
    one = tirx.const(1, dtype)
    assert "128" not in rewritten(x, te.compute((8,), lambda i: x(i) + one))
    assert f'{dtype.replace("64", "128")}"' in rewritten(x, te.compute((8,), lambda i: x(i) + one), bits=64)
