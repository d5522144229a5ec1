"""What ONNX Runtime has no kernel for is verified by the ONNX project's evaluator, where that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import relaxc
from relaxc.service import compiler
from relaxc.service.errors import UnsupportedModel
from relaxc.service.frontend import reference
from relaxc.service.frontend.onnx.evaluator import evaluated
from relaxc.service.request import CompileOptions, ModelFormat
from tests.frontend.onnx.harness import model, node, value, write

DOUBLE = TensorProto.DOUBLE


def _recurrent(op: str, gates: int) -> Any:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((1, gates * 3, 4)), "r": rng.standard_normal((1, gates * 3, 3))}
    nodes = [node(op, ["x", "w", "r"], ["y"], hidden_size=3)]
    return model(nodes, [value("x", [20, 2, 4], DOUBLE)], [value("y", [20, 1, 2, 3], DOUBLE)], **weights)


def _resize() -> Any:
    nodes = [node("Resize", ["x", "", "scales"], ["y"], mode="linear")]
    scales = np.array([1, 1, 2, 1.7], "float32")
    return model(nodes, [value("x", [1, 1, 4, 4], DOUBLE)], [value("y", [1, 1, 8, 6], DOUBLE)], scales=scales)


MODELS = {
    "erf": model([node("Erf", ["x"], ["y"])], [value("x", [8], DOUBLE)], [value("y", [8], DOUBLE)]),
    "rows of an odd and of an even size": model(
        [node("LRN", ["x"], ["h"], size=3, alpha=0.5), node("LRN", ["h"], ["y"], size=4, alpha=0.5)],
        [value("x", ["n", 5, 3], DOUBLE)],
        [value("y", ["n", 5, 3], DOUBLE)],
    ),
    "linear": _resize(),
    "rnn": _recurrent("RNN", 1),
    "gru": _recurrent("GRU", 3),
    "lstm": _recurrent("LSTM", 4),
}


@pytest.mark.sampled("erf", "rows of an odd and of an even size", "linear", "gru", "lstm")
@pytest.mark.parametrize("name", MODELS)
def test_models_of_float64_keep_their_digits(name: str, tmp_path: Path) -> None:
    made = relaxc.compile(write(tmp_path, MODELS[name]), target="x86-64-v3")
    found: Any = made.manifest.verification
    assert found["passed"] and found["outputs"][0]["scaled_error"] < 1e-12


def test_what_it_raises_says_nothing_of_the_model(tmp_path: Path) -> None:
    """It asks Python's sequences for places that are behind them."""
    nodes = [node("RoiAlign", ["x", "r", "b"], ["y"], output_height=2, output_width=2, sampling_ratio=2)]
    inputs = [value("x", [1, 2, 6, 8]), value("r", [1, 4]), value("b", [1], TensorProto.INT64)]
    run = evaluated(model(nodes, inputs, [value("y", [1, 2, 2, 2])], opset=22), NotImplementedError("no kernel"))
    given = {"x": np.ones((1, 2, 6, 8), "float32"), "r": np.ones((1, 4), "float32"), "b": np.array([7])}
    with pytest.raises(UnsupportedModel, match=r"no reference runs the model: no kernel; the ONNX project's evaluator"):
        run(given)


def test_without_a_comparison_a_model_compiles_that_no_reference_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node("LRN", ["x"], ["y"], size=3)]
    path = write(tmp_path, model(nodes, [value("x", [1, 5, 3], DOUBLE)], [value("y", [1, 5, 3], DOUBLE)]))

    class Broken:
        output_names = ("y",)

        def run(self, *args: Any) -> Any:
            raise IndexError("index 96 is out of bounds")

    monkeypatch.setattr("relaxc.service.frontend.onnx.evaluator.evaluator", lambda model: Broken())
    request = compiler.prepare(path, target="x86-64-v3", options=CompileOptions(verify=False))
    compiler.run(request, tmp_path, lambda event: None)
    assert "index 96 is out of bounds" in str(relaxc.load(tmp_path / "model.so").manifest.verification)


def test_its_numbers_are_arrays(tmp_path: Path) -> None:
    scalars = [value(name, [], TensorProto.INT32) for name in ("a", "b")]
    run = evaluated(
        model([node("Div", ["a", "b"], ["y"])], scalars, [value("y", [], TensorProto.INT32)]), TypeError("no kernel")
    )
    found = run({"a": np.array(7, "int32"), "b": np.array(2, "int32")})["y"]
    assert isinstance(found, np.ndarray) and found.shape == () and found.dtype == "int32" and found == 3


def test_masked_scores_are_minus_infinity(tmp_path: Path) -> None:
    """ONNX Runtime has the lowest number there."""
    nodes = [node("Attention", ["q", "k", "v"], ["y", "", "", "s"], is_causal=1, qk_matmul_output_mode=2)]
    outputs = [value("y", [1, 2, 3, 4]), value("s", [1, 2, 3, 3])]
    path = write(tmp_path, model(nodes, [value(name, [1, 2, 3, 4]) for name in "qkv"], outputs, opset=23))
    found = reference(path, ModelFormat.ONNX, shapes={})({name: np.ones((1, 2, 3, 4), "float32") for name in "qkv"})
    assert (np.isneginf(found["s"]) == ~np.tri(3, dtype=bool)).all()


def test_the_operands_of_one_hot_are_whole_numbers(tmp_path: Path) -> None:
    inputs = [value("i", [3]), value("d", [1]), value("v", [2])]
    made = model([node("OneHot", ["i", "d", "v"], ["y"])], inputs, [value("y", [3, "n"])])
    given = {"i": np.array([0.5, 1, 2], "float32"), "d": np.array([1.5], "float32"), "v": np.array([2, 3], "float32")}
    assert evaluated(made, TypeError("no kernel"))(given)["y"].tolist() == [[3], [2], [2]]


def test_what_a_kernel_says_at_length_of_what_it_lacks_is_read_to_its_end(tmp_path: Path) -> None:
    """ONNX Runtime names the file and the function before 'Non per-tensor quantization is not supported now'."""
    kinds = {"x": ([1, 1, 3, 3], TensorProto.UINT8), "w": ([2, 1, 2, 2], TensorProto.UINT8)}
    kinds |= {"z": ([], TensorProto.UINT8), "p": ([2], TensorProto.UINT8)}
    inputs = [value(name, *kind) for name, kind in kinds.items()]
    nodes = [node("ConvInteger", list(kinds), ["y"], pads=[1, 1, 1, 1])]
    path = write(tmp_path, model(nodes, inputs, [value("y", [1, 2, 4, 4], TensorProto.INT32)]))
    rng = np.random.default_rng(0)
    given = {name: np.asarray(rng.integers(0, 255, shape), "uint8") for name, (shape, _) in kinds.items()}
    found = reference(path, ModelFormat.ONNX, shapes={})(given)["y"]
    x = np.pad(given["x"].astype(int) - int(given["z"]), [(0, 0), (0, 0), (1, 1), (1, 1)])
    w = given["w"].astype(int) - given["p"].astype(int).reshape(2, 1, 1, 1)
    windows = np.lib.stride_tricks.sliding_window_view(x[0, 0], (2, 2))
    np.testing.assert_array_equal(found[0], np.einsum("hwij,oij->ohw", windows, w[:, 0]))
