"""Numbers for elements: as many as there are, others in each run, and only for shapes that are sure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from relaxc.service.frontend import Move, moved_reference
from relaxc.service.frontend.onnx.noise import Noise, shapes_of
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import model, node, value, write

SHAPE = (200, 50)


def test_each_element_and_each_tensor_has_numbers_of_its_own() -> None:
    import onnxruntime

    noise = Noise({"a": SHAPE, "b": SHAPE, "c": (3, 1, 7), "s": ()}, by=2.0, seed=1.0)
    names = [noise.of(name, index) for index, name in enumerate(["a", "b", "c", "s", "a"])]
    assert None not in names and len(set(names)) == 5
    shapes = [SHAPE, SHAPE, (3, 1, 7), (), SHAPE]
    outputs = [value(str(name), shape) for name, shape in zip(names, shapes, strict=True)]
    made = helper.make_model(
        helper.make_graph(noise.first(), "noise", [], outputs, noise.initializers),
        opset_imports=[helper.make_opsetid("", 21)], ir_version=10,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(made.SerializeToString())
    first, again = session.run(None, {}), session.run(None, {})
    assert [each.shape for each in first] == shapes
    for one, other in zip(first, again, strict=True):
        assert (one != other).all() and np.abs(one).max() <= 2
    a, b = first[:2]
    assert len(np.unique(a)) > 0.99 * a.size and abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.05
    assert abs(a.std() - 4 / 12**0.5) < 0.02


def test_what_a_model_says_of_its_shapes_is_not_believed(tmp_path: Path) -> None:
    held = {"s": np.float32(0.02), "z": np.uint8(128), "two": np.float32(2)}
    nodes = [node("Mul", ["x", "two"], ["h"]), node("QuantizeLinear", ["h", "s", "z"], ["y"])]
    made = model(nodes, [value("x", ["n", 50])], [value("y", ["n", 50], TensorProto.UINT8)], opset=21, **held)
    made.graph.value_info.append(value("h", [7, 50]))
    assert "h" not in shapes_of(made)
    fixed = model(nodes, [value("x", [4, 50])], [value("y", [4, 50], TensorProto.UINT8)], opset=21, **held)
    assert shapes_of(fixed)["h"] == (4, 50)
    run = moved_reference(write(tmp_path, made), ModelFormat.ONNX, Move.QUANTIZATIONS, seed=0, by=1e-3)
    assert run is not None and run({"x": np.ones(SHAPE, "float32")})["y"].shape == SHAPE


def test_tensors_without_elements_have_no_numbers() -> None:
    noise = Noise({"none": (0, 3), "large": (1 << 13, 1 << 13)}, by=1.0, seed=1.0)
    assert noise.of("none", 0) is None and noise.of("large", 1) is None and noise.first() == []
