"""DFT and STFT beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.frontend.onnx.harness import check, model, node, value, write

WINDOW = np.hanning(16).astype("float32")


@pytest.mark.parametrize(
    ("shape", "length", "attributes", "opset", "dtype"),
    [
        (["b", 20, 1], None, {"onesided": 1}, 17, TensorProto.FLOAT),
        (["b", 20, 3, 2], 16, {"axis": 1}, 17, TensorProto.DOUBLE),
        (["b", 4, 20, 2], 32, {"axis": 2, "inverse": 1}, 18, TensorProto.FLOAT),
        (["b", 6, 5, 1], None, {}, 20, TensorProto.DOUBLE),
    ],
)
def test_a_transform(
    shape: list[Any], length: int | None, attributes: dict[str, Any], opset: int, dtype: int, tmp_path: Path
):
    weights = {} if length is None else {"length": np.int64(length)}
    nodes = [node("DFT", ["x", *weights], ["y"], **attributes)]
    proto = model(nodes, [value("x", shape, dtype)], [value("y", [None] * len(shape), dtype)], opset=opset, **weights)
    check(write(tmp_path, proto))


@pytest.mark.parametrize(("window", "onesided"), [(True, 1), (False, 0)])
@pytest.mark.parametrize("signal", [["b", "t", 1], ["b", "t"]])
def test_a_windowed_one_of_any_length(window: bool, onesided: int, signal: list[Any], tmp_path: Path):
    weights = {"step": np.int64(5), "length": np.int64(16), **({"window": WINDOW} if window else {})}
    nodes = [node("STFT", ["x", "step", "window" if window else "", "length"], ["y"], onesided=onesided)]
    proto = model(nodes, [value("x", signal)], [value("y", [None] * 4)], **weights)
    check(write(tmp_path, proto), sizes={"t": 47})
