"""Networks in 8-bit floats: linear layers as ONNX has them, and blocks of torch's `_scaled_mm`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["scaled_blocks", "write_layers"]

_LARGEST = 448.0
"""Of e4m3."""


def write_layers(path: Path, sizes: Sequence[int], rows: int, *, by_column: bool) -> Path:
    """Write linear layers with ReLU between them; weights with one scale, or with one for each column."""
    from onnx import TensorProto, helper

    draw = np.random.default_rng(sum(sizes))
    nodes: list[Any] = []
    given = [_bytes("z", np.zeros(()))]
    x, last = "x", len(sizes) - 2
    for i, (depth, columns) in enumerate(itertools.pairwise(sizes)):
        weight = draw.standard_normal((depth, columns)) / np.sqrt(depth)
        scale = np.abs(weight).max(0 if by_column else None) / _LARGEST
        given += [_bytes(f"w{i}", weight / scale), _bytes(f"zw{i}", np.zeros(scale.shape)), _floats(f"sw{i}", scale)]
        given += [_floats(f"sx{i}", 0.01), _floats(f"b{i}", draw.standard_normal(columns) * 0.1)]
        nodes += [
            helper.make_node("QuantizeLinear", [x, f"sx{i}", "z"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", f"sx{i}", "z"], [f"d{i}"]),
            helper.make_node("DequantizeLinear", [f"w{i}", f"sw{i}", f"zw{i}"], [f"dw{i}"], axis=1),
            helper.make_node("MatMul", [f"d{i}", f"dw{i}"], [f"m{i}"]),
            helper.make_node("Add", [f"m{i}", f"b{i}"], ["y" if i == last else f"a{i}"]),
        ]
        if i < last:
            nodes.append(helper.make_node("Relu", [f"a{i}"], [f"r{i}"]))
            x = f"r{i}"
    shapes = (("x", [rows, sizes[0]]), ("y", [rows, sizes[-1]]))
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name, shape in shapes]
    graph = helper.make_graph(nodes, "e4m3", *ends, given)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    path.write_bytes(made.SerializeToString())
    return path


def _bytes(name: str, array: Any) -> Any:
    import ml_dtypes
    from onnx import TensorProto, helper

    low = array.astype(ml_dtypes.float8_e4m3fn)
    return helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, low.shape, low.tobytes(), raw=True)


def _floats(name: str, array: Any) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.asarray(array, np.float32), name)


def scaled_blocks(width: int, *, by_row: bool) -> Any:
    """Return two transformer MLPs whose rows are scaled while they run, each or all together."""
    import torch
    from torch import nn

    low = torch.float8_e4m3fn

    class Scaled(nn.Module):
        def __init__(self, depth: int, columns: int) -> None:
            super().__init__()
            weight = torch.randn(columns, depth, generator=torch.Generator().manual_seed(depth + columns)) / depth**0.5
            scale = (weight.abs().amax(1, keepdim=True) if by_row else weight.abs().max()) / _LARGEST
            self.register_buffer("weight", (weight / scale).to(low))
            self.register_buffer("scale", scale.t().contiguous() if by_row else scale)

        def forward(self, x: Any) -> Any:
            scale = (x.abs().amax(1, keepdim=True) if by_row else x.abs().max()) / _LARGEST
            made = torch._scaled_mm(
                (x / scale).to(low), self.weight.t(), scale_a=scale, scale_b=self.scale, out_dtype=torch.bfloat16
            )
            return made.to(torch.float32)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up, self.down = Scaled(width, 4 * width), Scaled(4 * width, width)

        def forward(self, x: Any) -> Any:
            return x + self.down(nn.functional.gelu(self.up(self.norm(x)), approximate="tanh"))

    return nn.Sequential(Block(), Block()).eval()
