"""A model whose quantizations or weights are moved gives nearly what it gave, and one without them does not move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from relaxc.service import compiler
from relaxc.service.frontend import Move, moved_reference, reference
from relaxc.service.request import ModelFormat
from relaxc.service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write

UINT8 = TensorProto.UINT8
X = np.random.default_rng(0).standard_normal((200, 50)).astype("float32")
WEIGHTS: dict[str, Any] = {
    "one": np.float32(1),
    "s": np.float32(0.02),
    "z": np.uint8(128),
    "w": np.eye(50, dtype="uint8") * 100,
}
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
    nodes = [node("Mul", ["given", "one"], ["x"]), *NODES[name]]
    path = write(
        tmp_path, model(nodes, [value("given", [200, 50])], [value("y", [200, 50], UINT8)], opset=opset, **WEIGHTS)
    )
    moved = moved_reference(path, ModelFormat.ONNX, Move.QUANTIZATIONS, seed=0, by=1e-3)
    assert moved is not None
    plain = reference(path, ModelFormat.ONNX)({"given": X})["y"]
    apart, again = (np.abs(moved({"given": X})["y"].astype(int) - plain) for _ in range(2))
    assert 0 < (apart > 0).mean() < 0.25 and not np.array_equal(apart, again)
    assert apart.max() == 1 or name == "QLinearMatMul"


@pytest.mark.parametrize("name", NODES)
def test_a_single_kernel_is_exact(tmp_path: Path, name: str) -> None:
    """Its operands are given to the bit, so nothing decides but ONNX's rules; behind it, rounding does."""
    nodes = NODES[name]
    shapes = [value("x", [200, 50])], [value("y", [200, 50], UINT8)]
    path = write(tmp_path, model(nodes, *shapes, **WEIGHTS))
    assert moved_reference(path, ModelFormat.ONNX, Move.QUANTIZATIONS, seed=0, by=1e-3) is None
    if name != "QLinearMatMul":
        return
    nodes = [*nodes[:-1], node("QLinearMatMul", nodes[-1].input, ["h"])]
    nodes.append(node("QLinearMatMul", ["h", *nodes[-1].input[1:]], ["y"]))
    path = write(tmp_path, model(nodes, *shapes, **WEIGHTS))
    assert moved_reference(path, ModelFormat.ONNX, Move.QUANTIZATIONS, seed=0, by=1e-3) is not None


def test_fillers_have_no_part_in_the_mean(tmp_path: Path) -> None:
    nodes = [node("Mul", ["given", "one"], ["x"]), *NODES["QuantizeLinear"]]
    path = write(tmp_path, model(nodes, [value("given", ["n"])], [value("y", ["n"], UINT8)], **WEIGHTS))
    moved = moved_reference(path, ModelFormat.ONNX, Move.QUANTIZATIONS, seed=0, by=1e-3)
    assert moved is not None
    many = np.full(999, -np.finfo("float32").max)
    assert not moved({"given": many.astype("float32")})["y"].any()
    for filler in (-3.4e38, -np.inf):
        assert moved({"given": np.array([0.5, filler, 0.511], "float32")})["y"].tolist() == [153, 0, 154]


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


def test_masks_that_were_quantized_with_their_fillers_stay_masks(tmp_path: Path) -> None:
    """The scale of 1.3e36 that a quantizer gave them: a mean that overflows would move every element anywhere."""
    lowest = np.finfo("float32").min
    held = {"one": np.float32(1), "s": np.float32(-lowest / 255), "z": np.uint8(255)}
    nodes = [node("Mul", ["given", "one"], ["x"]), *NODES["QuantizeLinear"]]
    path = write(tmp_path, model(nodes, [value("given", [64])], [value("y", [64], UINT8)], **held))
    moved = moved_reference(path, ModelFormat.ONNX, Move.QUANTIZATIONS, seed=0, by=1e-4)
    assert moved is not None
    given = np.where(np.arange(64) % 2, lowest, np.linspace(-3, 3, 64)).astype("float32")
    assert moved({"given": given})["y"].tolist() == [255, 0] * 32


def test_values_move_anew_in_each_run_and_sizes_stay(tmp_path: Path) -> None:
    """A factor of 2 that is 3e-6 less makes 15 of 16 rows; a filler of -3.4e38 that moves is no infinity."""
    lowest = np.finfo("float32").min
    held = {
        "scales": np.array([1, 1, 2, 2], "float32"),
        "half": np.float32(0.5),
        "mask": np.array([0, lowest], "float32"),
    }
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["sizes"], to=TensorProto.FLOAT),
        node("Mul", ["sizes", "half"], ["halves"]),
        node("Floor", ["halves"], ["floors"]),
        node("Cast", ["floors"], ["small"], to=TensorProto.INT64),
        node("Resize", ["x", "", "", "small"], ["less"]),
        node("Resize", ["x", "", "scales"], ["more"]),
        node("Exp", ["mask"], ["none"]),
        node("Add", ["mask", "half"], ["masked"]),
        node("Add", ["x", "masked"], ["y"]),
        node("Sigmoid", ["y"], ["z"]),
    ]
    outputs = [value("less", [1, 1, 4, 1]), value("more", [2, 2, 16, 4]), value("z", [2, 2, 8, 2])]
    path = write(tmp_path, model(nodes, [value("x", [2, 2, 8, 2])], outputs, opset=13, **held))
    moved = moved_reference(path, ModelFormat.ONNX, Move.VALUES, seed=0, by=1e-4)
    assert moved is not None
    given = {"x": np.random.default_rng(0).standard_normal((2, 2, 8, 2)).astype("float32")}
    plain = reference(path, ModelFormat.ONNX)(given)
    first, again = moved(given), moved(given)
    for name, wanted in plain.items():
        assert first[name].shape == wanted.shape and np.isfinite(first[name]).all()
        np.testing.assert_allclose(first[name], wanted, rtol=2e-3, atol=1e-4)
    assert not np.array_equal(first["z"], again["z"])
    assert (first["z"][..., 1] == 0).all()


def test_values_of_an_old_opset_do_not_move(tmp_path: Path) -> None:
    path = write(tmp_path, model([node("Relu", ["x"], ["y"])], [value("x", [4])], [value("y", [4])], opset=7))
    assert moved_reference(path, ModelFormat.ONNX, Move.VALUES, seed=0, by=1e-4) is None


def _of_a_domain(op: str) -> Any:
    """Codes of a float, times themselves or added: with these scales every other one is half a step."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node(op, ["q", "s", "z", "q", "s", "z", "o", "z"], ["y"], domain="com.microsoft"),
    ]
    held: dict[str, Any] = {
        "s": np.float32(0.25),
        "z": np.uint8(3),
        "o": np.float32(0.125 if op == "QLinearMul" else 1),
    }
    return model(nodes, [value("x", [64, 50])], [value("y", [64, 50], UINT8)], **held)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_nobody_says_how_operators_of_a_domain_round(op: str, tmp_path: Path) -> None:
    path = write(tmp_path, _of_a_domain(op))
    moved = moved_reference(path, ModelFormat.ONNX, Move.QUANTIZATIONS, seed=0, by=1e-4)
    assert moved is not None
    x = X[:64]
    plain = reference(path, ModelFormat.ONNX)({"x": x})["y"].astype(int)
    apart = [np.abs(moved({"x": x})["y"].astype(int) - plain) for _ in range(4)]
    assert max(each.max() for each in apart) == 1


def test_a_tie_of_such_an_operator_is_no_wrong_number(tmp_path: Path) -> None:
    """One of 4096 values is half a step, to the last digit."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearMul", ["q", "s", "z", "q", "s", "z", "o", "z"], ["y"], domain="com.microsoft"),
    ]
    held: dict[str, Any] = {"s": np.float32(0.25), "z": np.uint8(131), "o": np.float32(0.3)}
    made = model(nodes, [value("x", [64, 64])], [value("y", [64, 64], UINT8)], **held)
    compiler.run(compiler.prepare(write(tmp_path, made), target="x86-64-v3"), tmp_path, lambda event: None)
    found: Any = load(tmp_path / "model.so").manifest.verification
    assert found["passed"] and found["outputs"][0]["moved"]
