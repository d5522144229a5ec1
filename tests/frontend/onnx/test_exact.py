"""References of products of bytes are exact on every CPU, one without VNNI too, where ONNX Runtime's own saturate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from relaxc.service.frontend.onnx.exact import with_equal_signs
from relaxc.service.frontend.onnx.reference import plain_reference, reference
from tests.frontend.onnx.harness import model, node, value, write

DEPTH = 64
KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}


def product(op: str, a: Any, b: Any, *, zeros: bool = True) -> Any:
    """One operator of a [2, DEPTH] of `a` and constant weights of `b`, or a convolution of as many channels."""
    weights = np.full((DEPTH, 3), np.iinfo(b).max, b)
    shape: list[int] = [2, DEPTH]
    if "Conv" in op:
        weights, shape = weights.T.reshape(3, DEPTH, 1, 1).copy(), [2, DEPTH, 1, 1]
    held = {"w": weights, "za": a(0), "zb": b(1), "s": np.float32(0.01), "sy": np.float32(4.0), "zy": np.uint8(0)}
    scaled = ["x", "s", "za", "w", "s", "zb", "sy", "zy"]
    inputs = scaled if op.startswith("QLinear") else ["x", "w", *(["za", "zb"] if zeros else [])]
    out = TensorProto.UINT8 if op.startswith("QLinear") else TensorProto.INT32
    held = {name: array for name, array in held.items() if name in inputs}
    result = value("y", [2, 3, *shape[2:]], out)
    return model([node(op, inputs, ["y"])], [value("x", shape, KINDS[a])], [result], **held)


@pytest.mark.parametrize(
    ("op", "a", "b", "zeros"),
    [
        ("MatMulInteger", np.uint8, np.int8, True),
        ("MatMulInteger", np.uint8, np.int8, False),
        ("MatMulInteger", np.int8, np.uint8, True),
        ("MatMulInteger", np.int8, np.int8, True),
        ("ConvInteger", np.uint8, np.int8, True),
        ("ConvInteger", np.int8, np.uint8, True),
        ("QLinearMatMul", np.uint8, np.int8, True),
        ("QLinearConv", np.uint8, np.int8, True),
    ],
)
def test_the_largest_products_are_summed_exactly(tmp_path: Path, op: str, a: Any, b: Any, zeros: bool) -> None:
    path = write(tmp_path, product(op, a, b, zeros=zeros))
    x = np.full((2, DEPTH, 1, 1) if "Conv" in op else (2, DEPTH), np.iinfo(a).max, a)
    total = np.iinfo(a).max * (np.iinfo(b).max - zeros) * DEPTH
    want = total if op.endswith("Integer") else round(total * 0.01 * 0.01 / 4.0)
    for made in (reference(path, 1), plain_reference(path, 1)):
        assert made is not None
        assert (made({"x": x})["y"] == want).all()


def test_products_of_equal_signs_stay() -> None:
    assert not with_equal_signs(product("MatMulInteger", np.int8, np.int8))
    assert with_equal_signs(product("MatMulInteger", np.uint8, np.int8))
