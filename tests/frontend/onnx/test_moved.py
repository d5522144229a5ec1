"""A model whose quantizations or weights are moved gives nearly what it gave, and one without them does not move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from service.frontend import Move, moved_reference, reference
from service.request import ModelFormat
from tests.frontend.onnx.harness import model, node, value, write

UINT8 = TensorProto.UINT8
X = np.random.default_rng(0).standard_normal((200, 50)).astype("float32")
WEIGHTS: dict[str, Any] = {"s": np.float32(0.02), "z": np.uint8(128), "w": np.eye(50, dtype="uint8") * 100}
NODES = {
    "QuantizeLinear": [node("QuantizeLinear", ["x", "s", "z"], ["y"])],
    "DynamicQuantizeLinear": [node("DynamicQuantizeLinear", ["x"], ["y", "ys", "yz"])],
    "QLinearMatMul": [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearMatMul", ["q", "s", "z", "w", "s", "z", "s", "z"], ["y"]),
    ],
}


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("opset", [13, 21])
def test_a_few_values_fall_a_step_to_the_other_side(tmp_path: Path, name: str, opset: int) -> None:
    nodes = NODES[name]
    path = write(
        tmp_path, model(nodes, [value("x", [200, 50])], [value("y", [200, 50], UINT8)], opset=opset, **WEIGHTS)
    )
    moved = moved_reference(path, ModelFormat.ONNX, Move.QUANTIZATIONS, seed=0, by=1e-3)
    assert moved is not None
    apart = np.abs(moved({"x": X})["y"].astype(int) - reference(path, ModelFormat.ONNX)({"x": X})["y"])
    assert 0 < (apart > 0).mean() < 0.25
    assert apart.max() == 1 or name == "QLinearMatMul"


def test_what_quantizes_nothing_does_not_move(tmp_path: Path) -> None:
    path = write(tmp_path, model([node("Relu", ["x"], ["y"])], [value("x", [4])], [value("y", [4])]))
    assert moved_reference(path, ModelFormat.ONNX, Move.QUANTIZATIONS, seed=0, by=1e-3) is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_weight_moves_by_a_number_of_its_own(tmp_path: Path, dtype: str) -> None:
    kind = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}[dtype]
    weight, scale = np.eye(50, dtype=dtype), np.asarray(2, dtype)
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Mul", ["p", "s"], ["y"])]
    path = write(tmp_path, model(nodes, [value("x", [3, 50], kind)], [value("y", [3, 50], kind)], w=weight, s=scale))
    ones = {"x": np.ones((3, 50), dtype)}
    runs = [moved_reference(path, ModelFormat.ONNX, Move.WEIGHTS, seed=seed, by=2**-5) for seed in (0, 0, 1)]
    first, again, other = (run(ones)["y"].astype("float64") for run in runs if run is not None)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    apart = np.abs(first[0] / 2 - 1)
    assert 2**-7 < apart.max() <= 2**-5 + 2**-8
    assert len(np.unique(apart)) > 5
    assert reference(path, ModelFormat.ONNX)(ones)["y"].astype("float64").tolist() == [[2.0] * 50] * 3
