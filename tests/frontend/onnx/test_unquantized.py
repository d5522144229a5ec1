"""A quantized model without its rounding: quantizations still saturate, and weights are what they dequantize to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxc.service.frontend import unquantized_reference
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import model, node, value, write

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 6, 6)).astype("float32")
CODES = RNG.integers(-127, 128, (8, 4, 3, 3)).astype("int8")
SCALES = RNG.uniform(0.001, 0.01, 8).astype("float32")
HELD: dict[str, Any] = {
    "s": np.float32(0.01),
    "z": np.uint8(100),
    "t": np.float32(0.05),
    "low": np.uint8(0),
    "w": CODES,
    "ws": SCALES,
    "wz": np.zeros(8, "int8"),
    "b": RNG.integers(-99, 99, 8).astype("int32"),
    "flat": np.array([2, 8 * 16], "int64"),
}
QUANTIZED = [node("QuantizeLinear", ["x", "s", "z"], ["q"])]
QDQ = [
    *QUANTIZED,
    node("Transpose", ["q"], ["turned"], perm=[0, 1, 3, 2]),
    node("DequantizeLinear", ["turned", "s", "z"], ["d"]),
    node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=0),
    node("Mul", ["ws", "s"], ["bs"]),
    node("DequantizeLinear", ["b", "bs"], ["c"], axis=0),
    node("Conv", ["d", "v", "c"], ["h"]),
    node("QuantizeLinear", ["h", "t", "low"], ["hq"]),
    node("DequantizeLinear", ["hq", "t", "low"], ["r"]),
    node("Reshape", ["r", "flat"], ["y"]),
]
OPERATORS = [
    *QUANTIZED,
    node("Transpose", ["q"], ["turned"], perm=[0, 1, 3, 2]),
    node("QLinearConv", ["turned", "s", "z", "w", "ws", "wz", "t", "low", "b"], ["hq"]),
    node("Reshape", ["hq", "flat"], ["f"]),
    node("DequantizeLinear", ["f", "t", "low"], ["y"]),
]


@pytest.mark.parametrize("nodes", [QDQ, OPERATORS], ids=["QDQ", "operators"])
def test_it_computes_with_what_was_not_rounded(tmp_path: Path, nodes: list[Any]) -> None:
    import torch

    path = write(tmp_path, model(nodes, [value("x", X.shape)], [value("y", [2, 128])], **HELD))
    run = unquantized_reference(path, ModelFormat.ONNX)
    assert run is not None
    clipped = np.clip(X.swapaxes(2, 3), -1, 1.55)
    weights = CODES * SCALES[:, None, None, None]
    bias = HELD["b"].astype("float32") * SCALES * np.float32(0.01)
    want = torch.nn.functional.conv2d(*map(torch.from_numpy, (clipped, weights, bias))).numpy().clip(0, 12.75)
    np.testing.assert_allclose(run({"x": X})["y"], want.reshape(2, -1), rtol=1e-5, atol=1e-5)


def test_a_model_that_rounds_nothing_has_none(tmp_path: Path) -> None:
    path = write(tmp_path, model([node("Relu", ["x"], ["y"])], [value("x", [4])], [value("y", [4])]))
    assert unquantized_reference(path, ModelFormat.ONNX) is None
