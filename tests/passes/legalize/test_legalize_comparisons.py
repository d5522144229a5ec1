"""A value compared with itself is a test for NaN, and nothing else is concluded from comparisons either."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import TensorProto, numpy_helper
from tvm import relax

from relaxc.service import compiler
from relaxc.service.lowering import pipeline, schedule
from relaxc.service.lowering.target import resolve
from relaxc.service.passes import optimize
from relaxc.service.passes.legalize.legalize import Legalize
from relaxc.service.passes.legalize.legalize_comparisons import _OPERATORS, _RELATIONS
from relaxc.service.request import CompileOptions
from relaxc.service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write
from tests.frontend.pt2.support import export
from tests.passes.graphs import TARGET, compute, graph, run

VALUES = np.resize(np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, 1.5]), (5, 7))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("name", ["equal", "not_equal", "greater_equal", "less_equal", "greater", "less", "subtract"])
def test_a_value_and_itself(name: str, dtype: str) -> None:
    if dtype == "int32":
        values = np.arange(35, dtype=dtype).reshape(5, 7)
    else:
        values = VALUES.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    (got,) = compute(Legalize([])(graph(lambda x: getattr(relax.op, name)(x, x), x=(dtype, values.shape))), values)
    with np.errstate(invalid="ignore"):
        want = getattr(np, name)(values, values)
    np.testing.assert_array_equal(got.astype("float64"), want.astype("float64"))


CONCLUSIONS = {
    "not": ([node("Less", ["x", "y"], ["a"]), node("Not", ["a"], ["z"])], lambda x, y: ~(x < y)),
    "or": (
        [node("Less", ["x", "y"], ["a"]), node("LessOrEqual", ["y", "x"], ["b"]), node("Or", ["a", "b"], ["z"])],
        lambda x, y: (x < y) | (y <= x),
    ),
    "and": (
        [node("Greater", ["x", "y"], ["a"]), node("Not", ["a"], ["b"]), node("And", ["a", "b"], ["z"])],
        lambda x, y: np.zeros(x.shape, bool),
    ),
}


@pytest.mark.parametrize("name", CONCLUSIONS)
def test_nothing_is_concluded_from_what_is_said_of_two_values(tmp_path: Path, name: str) -> None:
    """`not x < y` is not `y <= x` where one is NaN, nor is `x < y or y <= x` true."""
    nodes, want = CONCLUSIONS[name]
    made = model(nodes, [value("x", [16]), value("y", [16])], [value("z", [16], TensorProto.BOOL)])
    compiler.run(compiler.prepare(write(tmp_path, made)), tmp_path, lambda event: None)
    values = np.array([np.nan, 0, 1, np.inf], "float32")
    x, y = (each.ravel() for each in np.meshgrid(values, values))
    np.testing.assert_array_equal(load(tmp_path / "model.so")(x=x, y=y)["z"], want(x, y))


INTEGERS = {
    "a sum is greater": ([node("Add", ["x", "one"], ["a"]), node("Greater", ["a", "x"], ["y"])], lambda x: x + 1 > x),
    "a difference is less": ([node("Sub", ["x", "one"], ["a"]), node("Less", ["a", "x"], ["y"])], lambda x: x - 1 < x),
    "the negative": ([node("Neg", ["x"], ["a"]), node("Greater", ["a", "x"], ["y"])], lambda x: -x > x),
    "twice": ([node("Add", ["x", "x"], ["a"]), node("Less", ["a", "x"], ["y"])], lambda x: x + x < x),
    "a cast": ([node("Mul", ["x", "two"], ["a"]), node("Equal", ["a", "x"], ["y"])], lambda x: x * 2 == x),
    "a remainder": (
        [node("Mul", ["x", "three"], ["a"]), node("Mod", ["a", "three"], ["b"]), node("Greater", ["b", "zero"], ["y"])],
        lambda x: x * 3 % 3 > 0,
    ),
    "a quotient": (
        [node("Mul", ["x", "two"], ["a"]), node("Div", ["a", "two"], ["b"]), node("Equal", ["b", "x"], ["y"])],
        lambda x: x * 2 // 2 == x,
    ),
    "a quotient of a sum": (
        [node("Add", ["x", "three"], ["a"]), node("Div", ["a", "three"], ["b"]), node("Less", ["b", "x"], ["y"])],
        lambda x: np.trunc((x + 3) / 3) < x,
    ),
}
EXTREMES: dict[str, tuple[list[Any], Any]] = {
    "the larger": ([node("Add", ["x", "one"], ["a"]), node("Max", ["a", "x"], ["y"])], lambda x: np.maximum(x + 1, x)),
    "the smaller": ([node("Add", ["x", "one"], ["a"]), node("Min", ["a", "x"], ["y"])], lambda x: np.minimum(x + 1, x)),
    "a sign": ([node("Sub", ["x", "three"], ["a"]), node("Sign", ["a"], ["y"])], lambda x: np.sign(x - 3)),
    "a distance": ([node("Sub", ["x", "three"], ["a"]), node("Abs", ["a"], ["y"])], lambda x: np.abs(x - 3)),
    "within": (
        [node("Sub", ["x", "three"], ["a"]), node("Clip", ["a", "zero", "seven"], ["y"])],
        lambda x: np.clip(x - 3, 0, 7),
    ),
}
UNSIGNED = {
    "a sign": ["uint8", "uint64"],
    "a sum is greater": ["uint8"],
    "the smaller": ["uint32"],
    "within": ["uint32"],
    "the larger": ["uint64"],
}
"""Where integers without a sign went wrong."""


@pytest.mark.sampled(
    *("a difference is less-int64", "the larger-int64", "a distance-int32", "a quotient of a sum-int64"),
    *(
        "a sum is greater-uint8",
        "the smaller-uint32",
        "a remainder-int32",
        "a sum is greater-int32",
        "the negative-int32",
    ),
)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in (*INTEGERS, *EXTREMES) for dtype in ("int32", "int64", *UNSIGNED.get(name, ()))],
)
def test_integers_wrap(tmp_path: Path, name: str, dtype: str) -> None:
    """TVM takes integers for indices, and tells LLVM that none overflow: `x + 1 > x` is true of these."""
    nodes, want = (INTEGERS | EXTREMES)[name]
    kind = getattr(TensorProto, dtype.upper())
    numbers = {name: np.array(number, dtype) for number, name in enumerate(("zero", "one", "two", "three"))}
    out = value("y", ["n"], TensorProto.BOOL if name in INTEGERS else kind)
    made = model(nodes, [value("x", ["n"], kind)], [out], seven=np.array(7, dtype), **numbers)
    compiler.run(compiler.prepare(write(tmp_path, made)), tmp_path, lambda event: None)
    ends = np.iinfo(dtype)
    x = np.array([ends.max, ends.min, ends.max // 2 + 1, ends.max // 3 + 1, 0, 5, 7], dtype)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(load(tmp_path / "model.so")(x=x)["y"], want(x))


CAST = {
    "compared": (node("Greater", ["b", "a"], ["y"]), TensorProto.BOOL, lambda x: x + np.int32(200) > x),
    "widened": (node("Cast", ["b"], ["y"], to=TensorProto.INT64), TensorProto.INT64, lambda x: x + np.int32(200)),
}


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("name", CAST)
def test_integers_that_are_cast_wrap(tmp_path: Path, name: str, dtype: str) -> None:
    """No buffer is int32 where casts are fused; and TVM takes the int64 of `i + 1` for `int64(i) + 1`."""
    last, result, want = CAST[name]
    nodes = [node("Cast", ["x"], ["a"], to=TensorProto.INT32), node("Add", ["a", "many"], ["b"]), last]
    given = value("x", ["n"], getattr(TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())))
    made = model(nodes, [given], [value("y", ["n"], result)], many=np.int32(200))
    compiler.run(compiler.prepare(write(tmp_path, made)), tmp_path, lambda event: None)
    integers = np.array([2147483520, 0, -2147483648, 5], "int32")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(load(tmp_path / "model.so")(x=integers.astype(dtype))["y"], want(integers))


ZEROS: dict[str, Any] = {
    **{name: (lambda x, zero, name=name: getattr(relax.op, name)(zero, x), getattr(np, name)) for name in _RELATIONS},
    "maximum": (lambda x, zero: relax.op.maximum(zero, x), np.maximum),
    "minimum": (lambda x, zero: relax.op.minimum(zero, x), np.minimum),
    "abs": (lambda x, zero: relax.op.abs(zero), lambda zero, x: zero),
    "sign": (lambda x, zero: relax.op.sign(zero), lambda zero, x: zero),
    "clip": (lambda x, zero: relax.op.clip(zero, 2, 7), lambda zero, x: zero + 2),
    "nn.relu": (lambda x, zero: relax.op.nn.relu(zero), lambda zero, x: zero),
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in _OPERATORS for dtype in ("int32", "int64", "uint8", "uint64")],
)
def test_zeros_are_operands(name: str, dtype: str) -> None:
    """TVM finds the 0 behind the bits, and LLVM's code generator took it for a pointer."""
    operator, numpys = ZEROS[name]

    def build(x: relax.Var) -> tuple[relax.Expr, ...]:
        zeros = relax.op.zeros_like(x), relax.op.multiply(x, relax.const(0, dtype)), relax.op.subtract(x, x)
        return tuple(relax.op.add(relax.op.astype(operator(x, zero), dtype), x) for zero in zeros)

    x = np.arange(-3, 4).astype(dtype)
    optimized = optimize(graph(build, x=(dtype, ("n",))), TARGET, CompileOptions())
    scheduled = replace(optimized, module=schedule(optimized.module, resolve("x86-64-v3")).module)
    pipeline.register()
    for got in run(scheduled, x, lowering=pipeline.NAME):
        np.testing.assert_array_equal(got, numpys(np.zeros_like(x), x).astype(dtype) + x)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("number", [0, -7])
def test_literals_are_operands_on_cuda(tmp_path: Path, number: int) -> None:
    """A literal of 32 bits had no address in C++."""
    x, y = (value(name, ["n"], TensorProto.INT32) for name in "xy")
    filled = node("ConstantOfShape", ["s"], ["a"], value=numpy_helper.from_array(np.array([number], "int32")))
    path = write(tmp_path, model([node("Shape", ["x"], ["s"]), filled, node("Max", ["a", "x"], ["y"])], [x], [y]))
    compiler.run(compiler.prepare(path, target="cuda-sm80"), tmp_path, lambda event: None)


class Buckets(torch.nn.Module):
    """T5's, of relative positions of a decoder."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(x.shape[0])
        distance = at[None, :] - at[:, None]
        return -torch.min(distance, torch.zeros_like(distance)) + x


def test_positions_are_held_against_zeros(tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", Buckets(), torch.arange(5), dynamic=({0: torch.export.Dim.AUTO},))
    compiler.run(compiler.prepare(path), tmp_path, lambda event: None)
    for x in (torch.arange(3), torch.arange(40)):
        (got,) = load(tmp_path / "model.so")(x=x.numpy()).values()
        np.testing.assert_array_equal(got, Buckets()(x).numpy())


def test_nan_is_replaced_by_a_network_that_asks_so(tmp_path: Path) -> None:
    nodes = [
        node("Equal", ["x", "x"], ["number"]),
        node("Where", ["number", "x", "zero"], ["y"]),
        node("Not", ["number"], ["nan"]),
    ]
    outputs = [value("y", [5, 7]), value("nan", [5, 7], TensorProto.BOOL)]
    path = write(tmp_path, model(nodes, [value("x", [5, 7])], outputs, zero=np.float32(0)))
    compiler.run(compiler.prepare(path), tmp_path, lambda event: None)
    x = VALUES.astype("float32")
    got = load(tmp_path / "model.so")(x=x)
    np.testing.assert_array_equal(got["y"], np.where(np.isnan(x), 0, x))
    np.testing.assert_array_equal(got["nan"], np.isnan(x))


@pytest.mark.parametrize("rows", [1, 2])
def test_bools_are_compared_by_their_bits(rows: int) -> None:
    names = sorted({*_RELATIONS, "maximum", "minimum"})
    x, y = np.resize([False, False, True, True], (2, 64)), np.resize([False, True], (rows, 64))
    made = graph(
        lambda x, y: tuple(getattr(relax.op, name)(x, y) for name in names), x=("bool", x.shape), y=("bool", y.shape)
    )
    got = compute(Legalize([])(made), x, y)
    for name, found in zip(names, got, strict=True):
        np.testing.assert_array_equal(found, getattr(np, name)(x, y), err_msg=name)


def test_bools_of_a_model_are_compared(tmp_path: Path) -> None:
    """LLVM's vectors of them were of bytes on one side and of bits on the other."""
    inputs = [value("x", [3, "n"], TensorProto.BOOL), value("y", ["n"], TensorProto.BOOL)]
    made = model([node("Equal", ["x", "y"], ["z"])], inputs, [value("z", [3, "n"], TensorProto.BOOL)])
    request = compiler.prepare(write(tmp_path, made), target="x86-64-v3")
    compiler.run(request, tmp_path, lambda event: None)
    x, y = np.resize([False, False, True, True], (3, 21)), np.resize([False, True], 21)
    np.testing.assert_array_equal(load(tmp_path / "model.so")(x=x, y=y)["z"], x == y)
