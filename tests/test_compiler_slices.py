"""Slices of an output that are small beside others: a wrong one is caught, and one that cancels out passes."""

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

DEPTH = 64

SCALES = {"a column": [1e6, 1.0], "one of many": [*np.geomspace(1e6, 1e2, 30), 1e-3]}

DTYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}


def columns(scales: Any, fault: float = 1.0, *, rows: int = 4, dtype: str = "float32", swapped: bool = False) -> Any:
    """A product whose columns, or rows, are of these sizes; the last is times `fault`."""
    weights = np.random.default_rng(0).standard_normal((DEPTH, len(scales))) * np.array(scales)
    weights[:, -1] *= fault
    weights, shape = (weights.T, [len(scales), rows]) if swapped else (weights, [rows, len(scales)])
    x = value("x", [DEPTH, rows] if swapped else [rows, DEPTH], DTYPES[dtype])
    product = node("MatMul", ["w", "x"] if swapped else ["x", "w"], ["y"])
    return model([product], [x], [value("y", shape, DTYPES[dtype])], w=weights.astype(dtype))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("scales", SCALES)
def test_a_small_column_that_is_wrong_by_a_hundredth_is_caught(scales: str, rows: int, tmp_path: Path) -> None:
    """Of the whole output it is 1e-8 or less."""
    right, wrong, same = (columns(SCALES[scales], fault, rows=rows) for fault in (1.0, 1.01, 1.0 + 1e-6))
    path = write(tmp_path, right, "right.onnx")
    with pytest.raises(VerificationFailed, match=r"slice .* of axis 1, of size .* is off by"):
        judged(path, write(tmp_path, wrong, "wrong.onnx"))
    assert judged(path, write(tmp_path, same, "same.onnx")).passed


@pytest.mark.parametrize(
    ("dtype", "scales", "fault"), [("float64", [1e12, 1.0], 1 + 1e-6), ("float16", [300, 1.0], 1.1)]
)
@pytest.mark.parametrize("swapped", [False, True], ids=["columns", "rows"])
def test_small_slices_of_other_dtypes_are_judged(
    dtype: str, scales: Any, fault: float, swapped: bool, tmp_path: Path
) -> None:
    right, wrong = (columns(scales, each, dtype=dtype, swapped=swapped) for each in (1.0, fault))
    path = write(tmp_path, right, "right.onnx")
    with pytest.raises(VerificationFailed, match=f"slice 1 of axis {0 if swapped else 1}"):
        judged(path, write(tmp_path, wrong, "wrong.onnx"))
    assert judged(path, write(tmp_path, right, "same.onnx")).passed


@pytest.mark.parametrize("far", [-31.0, -60.0])
def test_what_the_reference_alone_has_0_for_is_judged_in_float64(far: float, tmp_path: Path) -> None:
    """ONNX Runtime's sigmoid of less than -18 is 0 in float32."""

    def shifted(last: float) -> Any:
        nodes = [node("Add", ["x", "b"], ["a"]), node("Sigmoid", ["a"], ["y"])]
        return model(nodes, [value("x", [8, 4])], [value("y", [8, 4])], b=np.array([0, 1, 2, last], "float32"))

    path = write(tmp_path, shifted(far), "right.onnx")
    assert judged(path, write(tmp_path, shifted(far), "same.onnx")).passed
    with pytest.raises(VerificationFailed, match="slice 3 of axis 1"):
        judged(path, write(tmp_path, shifted(far + 0.1), "wrong.onnx"))


def test_a_small_column_of_a_program_of_torch_is_judged(tmp_path: Path) -> None:
    import torch

    def program(fault: float) -> Path:
        layer = torch.nn.Linear(DEPTH, 2)
        draw = torch.Generator().manual_seed(0)
        layer.weight.data = torch.randn(2, DEPTH, generator=draw) * torch.tensor([[1e6], [fault]])
        layer.bias.data.zero_()
        path = tmp_path / f"{fault}.pt2"
        torch.export.save(torch.export.export(layer.eval(), (torch.ones(4, DEPTH),)), path)
        return path

    with pytest.raises(VerificationFailed, match="slice 1 of axis 1"):
        judged(program(1.0), program(1.01))
    assert judged(program(1.0), program(1 + 1e-6)).passed


def cancelling(kind: str) -> Any:
    """A right network of whose last column, or half, next to nothing is left."""
    rng = np.random.default_rng(0)
    x, y = value("x", [4, DEPTH]), value("y", [4, 3])
    if kind == "difference":
        weights = rng.standard_normal((DEPTH, 2)).astype("float32")
        held = {"w": weights[:, :1] + 10, "v": weights[:, 1:] * 1e-3 + weights[:, :1] + 10, "u": weights}
        nodes = [node("MatMul", ["x", name], [f"{name}x"]) for name in held]
        nodes += [node("Sub", ["wx", "vx"], ["d"]), node("Concat", ["ux", "d"], ["y"], axis=1)]
        return model(nodes, [x], [y], **held)
    if kind == "tail of a GELU":
        held = {"w": (rng.standard_normal((DEPTH, 3)) * [1, 1, 0.02]).astype("float32")}
        held["b"] = np.array([1e3, 0, -4.8], "float32")
        nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["q"]), node("Gelu", ["q"], ["y"])]
        return model(nodes, [x], [y], opset=20, **held)
    if kind == "half an image of zeros":
        mask = (np.arange(24) < 11).astype("float32").reshape(1, 1, 1, 24)
        held = {"mask": mask, "w": rng.standard_normal((32, 32, 3, 3)).astype("float32")}
        nodes = [node("Mul", ["x", "mask"], ["m"]), node("Conv", ["m", "w"], ["y"], pads=[1, 1, 1, 1])]
        shape = [1, 32, 24, 24]
        return model(nodes, [value("x", shape)], [value("y", shape)], **held)
    held = {"far": np.array([0, 0, 3e4], "float32"), "w": rng.standard_normal((DEPTH, 3)).astype("float32")}
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "far"], ["q"]), node("Softmax", ["q"], ["s"])]
    nodes.append(node("Sub", ["s", "last"], ["y"]))
    return model(nodes, [x], [y], last=np.array([0, 0, 1], "float32"), **held)


@pytest.mark.parametrize("kind", ["difference", "tail of a GELU", "half an image of zeros", "a certain softmax"])
def test_what_cancels_out_in_a_right_build_is_no_fault(kind: str, tmp_path: Path) -> None:
    assert relaxc.compile(write(tmp_path, cancelling(kind))).manifest.verified is True


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
def test_a_difference_in_16_bits_passes(precision: Precision, tmp_path: Path) -> None:
    options = CompileOptions(precision=precision)
    assert relaxc.compile(write(tmp_path, columns([300, 1.0])), options=options).manifest.verified is True


def test_a_classifier_s_logits_near_zero_are_left_alone(tmp_path: Path) -> None:
    """One row of a thousand: the least is a thousandth of the rest by chance, and no reference needs to be moved."""
    found: Any = relaxc.compile(write(tmp_path, columns(np.ones(1000), rows=1))).manifest.verification
    assert found["passed"] and "slice_error" not in found["outputs"][0]
