"""What ONNX Runtime's optimizers fuse, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.frontend.onnx.harness import INT64, check, model, node, value, write

RNG = np.random.default_rng(0)
MS = "com.microsoft"
INT32, INT8 = TensorProto.INT32, TensorProto.INT8


def _w(*shape: int) -> Any:
    return (RNG.standard_normal(shape) / 4).astype("float32")


def _codes(*shape: int, dtype: str = "int8") -> Any:
    return RNG.integers(-100, 100, shape).astype(dtype)


def _op(name: str, inputs: list[str], outputs: list[str] | None = None, **attributes: Any) -> Any:
    return node(name, inputs, outputs or ["y"], domain=MS, **attributes)


X, IDS = value("x", ["b", "n", 16]), value("ids", ["b", "n"], INT64)
MASK, KEPT = value("mask", ["b", "n"], INT32), value("kept", ["b", "n"], INT32)  # of ones; of 0 to 7
QKV = {"w": _w(16, 48), "bias": _w(48)}
CASES: dict[str, Callable[[], tuple[list[Any], list[Any], dict[str, Any]]]] = {
    "attention": lambda: ([_op("Attention", ["x", "w", "bias"], num_heads=4)], [X], QKV),
    "attention, masked": lambda: ([_op("Attention", ["x", "w", "bias", "kept"], num_heads=2)], [X, KEPT], QKV),
    "attention, causal": lambda: ([_op("Attention", ["x", "w", "bias"], num_heads=2, unidirectional=1)], [X], QKV),
    "attention, other values": lambda: (
        [_op("Attention", ["x", "w", "bias"], num_heads=2, qkv_hidden_sizes=[16, 16, 32])],
        [X], {"w": _w(16, 64), "bias": _w(64)},
    ),
    "attention of heads": lambda: (
        [_op("MultiHeadAttention", ["x", "k", "v", "bias", "", "scores"], num_heads=4, scale=0.3)],
        [X, value("k", ["b", "m", 16]), value("v", ["b", "m", 16]), value("scores", [1, 4, "n", "m"])],
        {"bias": _w(48)},
    ),
    "attention of known heads": lambda: (
        [_op("MultiHeadAttention", ["x", "k", "v"], num_heads=2)],
        [value("x", [2, 3, 16])], {"k": _w(2, 5, 16), "v": _w(2, 5, 16)},
    ),
    "attention with a past": lambda: (
        [_op("MultiHeadAttention", ["x", "k", "v", "", "", "", "pk", "pv"], ["y", "nk", "nv"], num_heads=2)],
        [X, value("k", ["b", "n", 16]), value("v", ["b", "n", 16]), value("pk", ["b", 2, "p", 8]),
         value("pv", ["b", 2, "p", 8])],
        {},
    ),
    "embeddings": lambda: (
        [_op("EmbedLayerNormalization", ["ids32", "", "words", "places", "", "g", "h", "mask"], ["y", "counts"]),
         _op("EmbedLayerNormalization", ["ids32", "", "words", "places", "", "g", "h"], ["u", "none"]),
         node("Concat", ["counts", "none"], ["both"], axis=0), node("Cast", ["both"], ["z"], to=1)],
        [value("ids32", ["b", "n"], INT32), MASK],
        {"words": _w(8, 16), "places": _w(32, 16), "g": _w(16), "h": _w(16)},
    ),
    "dynamic codes": lambda: (
        [_op("DynamicQuantizeMatMul", ["x", "w", "s", "z", "bias"])], [X],
        {"w": _codes(16, 24), "s": np.float32(0.02), "z": np.int8(3), "bias": _w(24)},
    ),
    "codes to floats": lambda: (
        [_op("MatMulIntegerToFloat", ["a", "w", "t", "s", "", "z", "bias"])], [value("a", ["b", 5, 16], INT8)],
        {"w": _codes(16, 24), "t": np.float32(0.03), "s": np.abs(_w(24)), "z": _codes(24) // 20, "bias": _w(24)},
    ),
    "convolution": lambda: (
        [_op("FusedConv", ["i", "w", "c", "i"], activation="Relu", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
         _op("FusedConv", ["i", "w", "c"], ["z"], activation="Clip", activation_params=[-0.1, 0.2])],
        [value("i", ["b", 4, 7, 9])], {"w": _w(4, 4, 3, 3), "c": _w(4)},
    ),
    "product": lambda: (
        [_op("FusedGemm", ["a", "w", "c"], activation="LeakyRelu", activation_alpha=0.2, transB=1)],
        [value("a", ["b", 16])], {"w": _w(24, 16), "c": _w(24)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_it_was_made_of(case: str, tmp_path: Path) -> None:
    nodes, inputs, weights = CASES[case]()
    read = {name for each in nodes for name in each.input}
    outputs = [value(name, None or []) for each in nodes for name in each.output if name not in read]
    for each in outputs:
        each.type.tensor_type.ClearField("shape")
    check(write(tmp_path, model(nodes, inputs, outputs, opset=17, **weights)))
