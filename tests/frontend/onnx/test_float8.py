"""8-bit floats of ONNX, e4m3: quantized, cast and multiplied as ONNX Runtime does; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from relaxc.service.frontend import Move, moved_reference, reference
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import FLOAT, compiled, node, value
from tests.frontend.onnx.test_quantized import agree

F8 = TensorProto.FLOAT8E4M3FN
Array = np.ndarray[Any, Any]


def tensor(name: str, array: Array) -> Any:
    low = array.astype(ml_dtypes.float8_e4m3fn)
    return helper.make_tensor(name, F8, low.shape, low.tobytes(), raw=True)


def number(name: str, array: Any) -> Any:
    array = np.asarray(array, np.float32)
    return helper.make_tensor(name, FLOAT, array.shape, array.tobytes(), raw=True)


def written(path: Path, nodes: list[Any], initializers: list[Any], shape: list[int], out: list[int]) -> Path:
    graph = helper.make_graph(nodes, "float8", [value("x", shape)], [value("y", out)], initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    (path / "model.onnx").write_bytes(made.SerializeToString())
    return path / "model.onnx"


@pytest.mark.parametrize("per_column", [False, True])
def test_a_linear_layer(tmp_path: Path, per_column: bool) -> None:
    draw = np.random.default_rng(0)
    weights = draw.standard_normal((32, 24)) * 100
    scale = draw.uniform(0.001, 0.01, 24 if per_column else ())
    nodes = [
        node("QuantizeLinear", ["x", "sx", "z"], ["q"]),
        node("DequantizeLinear", ["q", "sx", "z"], ["d"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["dw"], axis=1),
        node("MatMul", ["d", "dw"], ["m"]),
        node("Add", ["m", "b"], ["y"]),
    ]
    zero = tensor("zw", np.zeros(24 if per_column else ()))
    initializers = [tensor("w", weights), number("sw", scale), zero, tensor("z", np.zeros(())), number("sx", 0.01)]
    initializers.append(number("b", draw.standard_normal(24)))
    path = written(tmp_path, nodes, initializers, [5, 32], [5, 24])
    agree(path, {"x": draw.standard_normal((5, 32)).astype(np.float32)})


def test_what_is_computed_may_be_rounded_otherwise(tmp_path: Path) -> None:
    """ONNX Runtime runs it without optimizations, which fuse such a product and its bias into an operator on bytes."""
    draw = np.random.default_rng(0)
    nodes = [node("Sigmoid", ["x"], ["g"]), node("QuantizeLinear", ["g", "s", "z"], ["q"])]
    nodes += [node("DequantizeLinear", ["q", "s", "z"], ["d"]), node("DequantizeLinear", ["w", "s", "z"], ["v"])]
    nodes += [node("MatMul", ["d", "v"], ["m"]), node("Add", ["m", "b"], ["y"])]
    initializers = [tensor("w", draw.standard_normal((32, 24)) * 100), tensor("z", np.zeros(())), number("s", 0.01)]
    path = written(tmp_path, nodes, [*initializers, number("b", draw.standard_normal(24))], [500, 32], [500, 24])
    data = {"x": draw.standard_normal((500, 32)).astype(np.float32)}
    other = moved_reference(path, ModelFormat.ONNX, Move.QUANTIZATIONS, seed=0, by=1e-2, shapes={})
    assert other is not None
    want, got = (run(data)["y"] for run in (reference(path, ModelFormat.ONNX), other))
    assert 1e-4 < np.linalg.norm(got - want) / np.linalg.norm(want) < 0.1


def test_casts(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["x"], ["q"], to=F8),
        node("Reshape", ["q", "s"], ["t"]),
        node("Cast", ["t"], ["y"], to=FLOAT),
    ]
    shape = helper.make_tensor("s", TensorProto.INT64, [2], [64, 4])
    path = written(tmp_path, nodes, [shape], [4, 64], [64, 4])
    values = np.random.default_rng(1).standard_normal((4, 64)) * 10.0 ** np.linspace(-4, 4, 64)
    agree(path, {"x": values.astype(np.float32)})


@pytest.mark.parametrize(("attributes", "zero"), [({"saturate": 0}, 0.0), ({}, 1.0)])
def test_without_saturation_and_with_a_zero_point(tmp_path: Path, attributes: dict[str, int], zero: float) -> None:
    """By the formula: ONNX Runtime ignores such a zero point."""
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes), node("Cast", ["q"], ["y"], to=FLOAT)]
    path = written(tmp_path, nodes, [number("s", 0.5), tensor("z", np.array(zero))], [4], [4])
    x = np.array([0.3, -2, 100, 1e3], "float32")
    got = compiled(tmp_path, onnx.load(path))(x)["y"]
    rounded = (x / 0.5 + zero).astype(ml_dtypes.float8_e4m3fn).astype("float32")
    np.testing.assert_array_equal(got, np.where(np.isnan(rounded), 448, rounded) if zero else rounded)
