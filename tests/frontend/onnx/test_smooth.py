"""SmoothQuant changes no number but those of the products that it is for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relaxc.service.frontend.onnx.reference import plain_session
from relaxc.service.frontend.onnx.smooth import smooth
from tests.frontend.onnx.harness import model, node, value

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((6, 8)).astype("float32")
WEIGHTS = {
    "g": DRAW.uniform(0.1, 20, 8).astype("float32"),
    "b": DRAW.standard_normal(8).astype("float32"),
    "w": DRAW.standard_normal((8, 4)).astype("float32"),
}


def branch(name: str, read: str) -> onnx.GraphProto:
    result = helper.make_tensor_value_info(f"{name}_z", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node("Neg", [read], [f"{name}_z"])], name, [], [result])


@pytest.mark.parametrize(("read", "shape"), [("n", [6, 8]), ("g", [8]), ("w", [8, 4])])
def test_what_a_branch_or_an_output_reads_stays(tmp_path: Path, read: str, shape: list[int]) -> None:
    nodes = [
        node("LayerNormalization", ["x", "g", "b"], ["n"]),
        node("MatMul", ["n", "w"], ["y"]),
        helper.make_node("If", ["c"], ["z"], then_branch=branch("then", read), else_branch=branch("else", read)),
    ]
    made = model(nodes, [value("x", [6, 8])], [value("y", [6, 4]), value("z", shape)], c=np.array(True), **WEIGHTS)
    kept = model(nodes[:2], [value("x", [6, 8])], [value("y", [6, 4]), value(read, shape)], **WEIGHTS)
    for each in (made, kept):
        before = plain_session(each.SerializeToString())({"x": X})
        smooth(each, lambda names: dict.fromkeys(names, np.linspace(0.1, 30, 8)))
        after = plain_session(each.SerializeToString())({"x": X})
        for name, want in before.items():
            np.testing.assert_allclose(after[name], want, rtol=1e-4, atol=1e-4)


def test_what_products_alone_read_is_scaled_in_the_norm() -> None:
    nodes = [node("LayerNormalization", ["x", "g", "b"], ["n"]), node("MatMul", ["n", "w"], ["y"])]
    made = model(nodes, [value("x", [6, 8])], [value("y", [6, 4])], **WEIGHTS)
    assert smooth(made, lambda names: dict.fromkeys(names, np.linspace(0.1, 30, 8))) == 1
    assert len(made.graph.node) == 2
    scale = next(numpy_helper.to_array(each) for each in made.graph.initializer if each.name == "g")
    assert not np.allclose(scale, WEIGHTS["g"])
