"""Weights of 4 and 8 bits in blocks, as ONNX files have them: kept so for a few rows, and right for any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relaxc.service.errors import ModelMalformed, UnsupportedModel
from relaxc.service.frontend import load
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import model, node, value, write
from tests.frontend.onnx.test_quantized import agree

RULE = "cpu.matmul_blocks"

Array = np.ndarray[Any, Any]


def packed(codes: Array, bits: int) -> Array:
    """Codes of the last axis in bytes, the first in the lowest bits."""
    each = 8 // bits
    filled = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)])
    parts = filled.reshape(*filled.shape[:-1], -1, each).astype(np.uint8)
    return np.bitwise_or.reduce(parts << (np.arange(each, dtype=np.uint8) * bits), axis=-1)


def n_bits(
    folder: Path, rows: int, depth: int, columns: int, block: int, width: int, zeros: bool, **changes: Any
) -> tuple[Path, dict[str, Array]]:
    """A model of one MatMulNBits with a bias and a residual, and an input."""
    rng = np.random.default_rng(depth + block + width)
    blocks = -(-depth // block)
    weights = {
        "b": packed(rng.integers(0, 1 << width, (columns, blocks, block)), width),
        "s": rng.uniform(0.01, 0.03, (columns, blocks)).astype("float32"),
        "bias": rng.standard_normal(columns).astype("float32"),
    }
    if zeros:
        weights["z"] = packed(rng.integers(0, 1 << width, (columns, blocks)), width)
    weights |= changes.pop("weights", {})
    attributes = {"K": depth, "N": columns, "bits": width, "block_size": block, **changes}
    made = node("MatMulNBits", ["x", "b", "s", *(["z"] if zeros else [])], ["p"], domain="com.microsoft", **attributes)
    nodes = [made, node("Add", ["p", "bias"], ["q"]), node("Relu", ["q"], ["y"])]
    graph = model(nodes, [value("x", [rows, depth])], [value("y", [rows, columns])], **weights)
    return write(folder, graph), {"x": rng.standard_normal((rows, depth)).astype("float32")}


@pytest.mark.sampled(most=12)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (1, 100), (3, 33), (8, 48), (20, 40)])
def test_matmul_n_bits(tmp_path: Path, rows: int, columns: int, block: int, bits: int, zeros: bool) -> None:
    path, inputs = n_bits(tmp_path, rows, 512, columns, block, bits, zeros)
    assert (RULE in agree(path, inputs)) == (rows <= 8)


def test_a_depth_of_no_whole_blocks_is_computed_in_floats(tmp_path: Path) -> None:
    path, inputs = n_bits(tmp_path, 2, 72, 40, 32, 4, True)
    assert RULE not in agree(path, inputs)


def test_bytes_near_their_zero_point_keep_their_digits_under_activations_of_one_sign(tmp_path: Path) -> None:
    """As behind a ReLU, with a weight far from the others in each block: it was off by 6e-4."""
    codes = np.random.default_rng(0).integers(124, 133, (40, 4, 128)).astype("uint8")
    path, inputs = n_bits(tmp_path, 1, 512, 40, 128, 8, False, weights={"b": codes})
    assert RULE in agree(path, {"x": inputs["x"] + np.float32(10)})


def test_the_accuracy_level_is_ignored_by_the_reference_too(tmp_path: Path) -> None:
    """ONNX Runtime would quantize the activations to bytes."""
    path, inputs = n_bits(tmp_path, 1, 512, 64, 32, 4, False, accuracy_level=4)
    assert RULE in agree(path, inputs)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"weights": {"b": np.zeros((40, 2, 15), np.uint8)}}, ModelMalformed),
        ({"weights": {"s": np.zeros(79, np.float32)}}, ModelMalformed),
        ({"weights": {"z": np.zeros(3, np.uint8)}}, ModelMalformed),
        ({"weights": {"b": np.zeros((40, 2, 16), np.int8)}}, ModelMalformed),
        ({"K": 96}, ModelMalformed),
        ({"K": -1}, ModelMalformed),
        ({"N": 1 << 40}, ModelMalformed),
        ({"bits": 3}, UnsupportedModel),
        ({"block_size": 24}, UnsupportedModel),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], error: type[Exception]) -> None:
    path, _ = n_bits(tmp_path, 2, 64, 40, 32, 4, True, **changes)
    with pytest.raises(error):
        load(path, ModelFormat.ONNX)


KINDS = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8}


def tensor(name: str, codes: Array, kind: str) -> Any:
    if kind.endswith("8"):
        return numpy_helper.from_array(codes.astype(kind), name)
    data = packed(codes.reshape(1, -1) & 15, 4).tobytes()
    return helper.make_tensor(name, KINDS[kind], codes.shape, data, raw=True)


@pytest.mark.sampled(most=10)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("block", [0, 32])
def test_dequantized_weights(tmp_path: Path, block: int, turned: bool, kind: str, zeros: bool) -> None:
    """DequantizeLinear in blocks and by columns, before a MatMul and a Gemm that turns its weights."""
    depth, columns = 64, 48
    rng = np.random.default_rng(block + turned)
    low, high = (-8, 8) if kind.startswith("int") else (0, 16)
    shape, axis = ((columns, depth), 1) if turned else ((depth, columns), 0)
    scales_of = tuple(size // block if at == axis else size for at, size in enumerate(shape)) if block else (columns,)
    weights = [
        tensor("b", rng.integers(low, high, shape), kind),
        numpy_helper.from_array(rng.uniform(0.01, 0.03, scales_of).astype("float32"), "s"),
        *([tensor("z", rng.integers(low, high, scales_of), kind)] if zeros else []),
    ]
    attributes = {"axis": axis, "block_size": block} if block else {"axis": 1 - axis}
    product = node("Gemm", ["x", "w"], ["y"], transB=1) if turned else node("MatMul", ["x", "w"], ["y"])
    nodes = [node("DequantizeLinear", ["b", "s", *(["z"] if zeros else [])], ["w"], **attributes), product]
    graph = helper.make_graph(nodes, "g", [value("x", [2, depth])], [value("y", [2, columns])], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made)
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    assert RULE in agree(path, {"x": rng.standard_normal((2, depth)).astype("float32")})
