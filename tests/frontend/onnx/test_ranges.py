"""What range of its inputs a quantized model was made for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from relaxc.service import frontend
from relaxc.service.frontend.onnx.ranges import index_ranges
from relaxc.service.request import ModelFormat
from relaxc.service.runtime.inputs import drawn
from relaxc.service.signature import Signature, TensorSpec
from tests.frontend.onnx.harness import INT64, model, node, value, write

HELD: dict[str, Any] = {"s": np.float32(0.5), "z": np.uint8(55), "m": np.int8(-28), "w": np.eye(8, dtype="int8")}
HELD |= {"per": np.full(8, 0.5, "float32"), "none": np.zeros(8, "uint8")}
BACK = node("DequantizeLinear", ["q", "s", "z"], ["y"])


def ranges(folder: Path, nodes: list[Any], kind: int = TensorProto.FLOAT) -> dict[str, tuple[float, float]]:
    path = write(folder, model(nodes, [value("x", [4, 8], kind)], [value("y", [4, 8])], **HELD))
    return frontend.input_ranges(path, ModelFormat.ONNX)


@pytest.mark.parametrize("moves", [False, True])
def test_codes_of_one_scale_say_it(tmp_path: Path, moves: bool) -> None:
    first = [node("Identity", ["x"], ["t"])] if moves else []
    found = ranges(tmp_path, [*first, node("QuantizeLinear", ["t" if moves else "x", "s", "z"], ["q"]), BACK])
    assert found == {"x": (-27.5, 100.0)}


def test_a_zero_point_says_the_dtype(tmp_path: Path) -> None:
    back = node("DequantizeLinear", ["q", "s", "m"], ["y"])
    assert ranges(tmp_path, [node("QuantizeLinear", ["x", "s", "m"], ["q"]), back]) == {"x": (-50.0, 77.5)}


def test_codes_that_are_given_have_all_values(tmp_path: Path) -> None:
    nodes = [node("DequantizeLinear", ["x", "s", "z"], ["y"])]
    assert ranges(tmp_path, nodes, TensorProto.UINT8) == {"x": (0.0, 255.0)}


def test_others_say_nothing(tmp_path: Path) -> None:
    assert ranges(tmp_path, [node("Relu", ["x"], ["y"])]) == {}
    scales = node("QuantizeLinear", ["x", "per", "none"], ["q"], axis=1)
    assert ranges(tmp_path, [scales, node("DequantizeLinear", ["q", "per", "none"], ["y"], axis=1)]) == {}
    computed = [node("Relu", ["x"], ["t"]), node("QuantizeLinear", ["t", "s", "z"], ["q"]), BACK]
    assert ranges(tmp_path, computed) == {}


def test_places_in_a_table_and_classes_are_drawn_from_all_of_them() -> None:
    nodes = [
        node("Cast", ["ids"], ["wide"], to=INT64),
        node("Unsqueeze", ["wide", "last"], ["each"]),
        node("Gather", ["table", "each"], ["rows"]),
        node("Equal", ["kinds", "classes"], ["one_hot"]),
        node("Cast", ["float"], ["whole"], to=INT64),
        node("Gather", ["table", "whole"], ["others"]),
    ]
    held = {"table": np.zeros((30, 4), "float32"), "classes": np.arange(7), "last": np.array([-1])}
    inputs = [
        value("ids", ["n"], TensorProto.INT32),
        value("kinds", ["n", 1], INT64),
        value("x", ["n"], INT64),
        value("float", ["n"]),
    ]
    outputs = [helper.make_tensor_value_info("rows", TensorProto.FLOAT, None)]
    ranges = index_ranges(model(nodes, inputs, outputs, **held))
    assert ranges == {"ids": (0.0, 29.0), "kinds": (0.0, 6.0)}
    specs = tuple(TensorSpec(each.name, "int64", (4000,)) for each in inputs[:3])
    (draw,) = drawn(Signature(specs, specs[:1]), 0, ranges)
    assert {name: int(array.max()) for name, array in draw.inputs.items()} == {"ids": 29, "kinds": 6, "x": 1}
