"""A value compared with itself is a test for NaN, and nothing else is concluded from comparisons either."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from tvm import relax

from service import compiler
from service.passes.legalize.legalize import Legalize
from service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write
from tests.passes.graphs import compute, graph

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
