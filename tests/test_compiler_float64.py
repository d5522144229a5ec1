"""Where ONNX Runtime's own roundings refuse an artifact, the model in float64 judges it; a fault is refused by both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import relaxc
from relaxc.service import frontend
from relaxc.service.cli.report import verification
from relaxc.service.errors import VerificationFailed
from relaxc.service.frontend.onnx import double
from tests.frontend.onnx.harness import model, node, value, write
from tests.test_compiler_quantized import judged

LONG = 1 << 20


def norm(scale: float = 1.0) -> Any:
    """A norm over a million values far from 0, of which ONNX Runtime adds up the squares one after the other."""
    held: dict[str, Any] = {"far": np.full(1, 50, "float32"), "scale": np.full(1, scale, "float32")}
    nodes = [node("Add", ["x", "far"], ["c"]), node("InstanceNormalization", ["c", "scale", "b"], ["y"])]
    return model(nodes, [value("x", [1, 1, LONG])], [value("y", [1, 1, LONG])], b=np.zeros(1, "float32"), **held)


def test_an_artifact_that_is_nearer_to_float64_than_the_reference_passes_and_says_so(tmp_path: Path) -> None:
    made = relaxc.compile(write(tmp_path, norm()))
    found: Any = made.manifest.verification
    (row,) = found["outputs"]
    assert found["passed"] and row["float64"]["artifact"] < 2e-5 < 1e-4 < row["float64"]["reference"]
    assert "y was judged by the reference in float64: ours is off by" in "\n".join(verification(made.manifest))


def test_a_fault_is_refused_with_both_figures(tmp_path: Path) -> None:
    path = write(tmp_path, norm(), "right.onnx")
    said = r"scaled error .* is over the tolerance 0\.0001 \(beside the reference in float64; beside itself: y: scaled"
    with pytest.raises(VerificationFailed, match=said) as refused:
        judged(path, write(tmp_path, norm(scale=1.0003), "wrong.onnx"))
    (row,) = refused.value.fields["report"]["outputs"]
    assert row["float64"]["artifact"] > 1e-4 and row["float64"]["reference"] > 1e-4


def test_a_reference_in_float64_that_computes_something_else_judges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slope(alpha: float, name: str) -> Path:
        nodes = [node("LeakyRelu", ["x"], ["a"], alpha=alpha), node("Mul", ["a", "one"], ["y"])]
        held = {"one": np.ones(1, "float32")}
        return write(tmp_path, model(nodes, [value("x", [64])], [value("y", [64])], **held), f"{name}.onnx")

    right, wrong = slope(0.25, "right"), slope(0.01, "wrong")
    monkeypatch.setattr(frontend, "double_reference", lambda *args, **kwargs: double.in_double(onnx.load(wrong)))
    with pytest.raises(VerificationFailed, match=r"over the tolerance 0\.0001$"):
        judged(right, wrong)


def test_what_would_take_too_long_is_judged_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double, "_MOST_BYTES", 1000)
    path = write(tmp_path, norm())
    with pytest.raises(VerificationFailed, match=r"over the tolerance 0\.0001$"):
        judged(path, path)


def test_a_reference_that_agrees_costs_no_run_in_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "double_reference", lambda *args, **kwargs: pytest.fail("it was asked"))
    held = {"w": np.eye(8, dtype="float32")}
    path = write(
        tmp_path, model([node("MatMul", ["x", "w"], ["y"])], [value("x", [4, 8])], [value("y", [4, 8])], **held)
    )
    judged(path, path)
