"""A second opinion before 'wrong': where a reference's own rewrites change its numbers, the one without them judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import relaxc
from relaxc.service.errors import VerificationFailed
from relaxc.service.request import CompileOptions, Precision
from tests.frontend.onnx.harness import model, node, value, write
from tests.test_compiler_quantized import judged

PADS = np.array([0, 0, 1, 1, 0, 0, 1, 1])


def stem(far: float = 0.0, dtype: str = "float32") -> Any:
    """A convolution, a zero Pad and a MaxPool: ONNX Runtime's Pad_Fusion pads with -inf where all are negative."""
    kind = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[dtype]
    rng = np.random.default_rng(0)
    held: dict[str, Any] = {"w": rng.standard_normal((8, 3, 3, 3)).astype(dtype), "pads": PADS}
    held["b"] = np.full(8, -6 + far).astype(dtype)
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Pad", ["c", "pads"], ["p"]),
        node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    return model(nodes, [value("x", [1, 3, 16, 16], kind)], [value("y", [1, 8, 4, 4], kind)], **held)


@pytest.mark.parametrize(("dtype", "precision"), [("float32", None), ("float32", Precision.FP16), ("float16", None)])
def test_a_zero_pad_before_a_pooling_is_judged_without_pad_fusion(
    dtype: str, precision: Precision | None, tmp_path: Path
) -> None:
    path = write(tmp_path, stem(dtype=dtype))
    found: Any = relaxc.compile(path, options=CompileOptions(precision=precision)).manifest.verification
    (row,) = found["outputs"]
    assert found["passed"] and row["scaled_error"] < 1e-2
    assert row["second_opinion"]["optimized"] > 0.1 < row["second_opinion"]["apart"]
    assert row["second_opinion"]["plain"] == row["scaled_error"]


def test_both_figures_are_named_where_neither_agrees(tmp_path: Path) -> None:
    path = write(tmp_path, stem(), "right.onnx")
    with pytest.raises(VerificationFailed, match=r"scaled error .* \(without the reference's own .* with them: y: "):
        judged(path, write(tmp_path, stem(far=0.1), "wrong.onnx"))


def test_a_reference_that_agrees_with_itself_is_asked_once(tmp_path: Path) -> None:
    def product(scale: float) -> Any:
        held = {"w": np.eye(8, dtype="float32") * np.float32(scale)}
        return model([node("MatMul", ["x", "w"], ["y"])], [value("x", [4, 8])], [value("y", [4, 8])], **held)

    path = write(tmp_path, product(1), "right.onnx")
    with pytest.raises(VerificationFailed, match="in float64; beside itself: y") as refused:
        judged(path, write(tmp_path, product(1.1), "wrong.onnx"))
    assert "own optimizations" not in refused.value.message
