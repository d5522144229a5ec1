"""The same model with its quantizations or weights moved a little, so that values near a boundary fall otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.frontend.model import Move
from service.frontend.onnx.file import tensors

__all__ = ["graphs", "moved"]

_RESULT_SCALE = {"QuantizeLinear": 1, "QLinearConv": 6, "QLinearMatMul": 6}
"""Operator → which input is the scale that it quantizes with."""


_FLOATS = ("float16", "bfloat16", "float32", "float64")


def moved(model: Any, move: Move, seed: int, by: float) -> Any | None:
    """Return the model with `move` of it moved by `by`, as `seed` decides; it is changed in place.

    None where it has none: it quantizes nothing. What dequantizes keeps its scale.
    """
    return _quantizations_moved(model, seed, by) if move is Move.QUANTIZATIONS else _weights_moved(model, seed, by)


def _weights_moved(model: Any, seed: int, by: float) -> Any:
    """The model, all of whose data it holds itself, with other weights; a number alone is no weight."""
    import numpy as np
    from onnx import numpy_helper

    draw = np.random.default_rng(seed)
    for tensor in tensors(model):
        value = numpy_helper.to_array(tensor)
        if value.dtype.name in _FLOATS and value.size > 1:
            other = (value * (1 + by * draw.uniform(-1, 1, value.shape))).astype(value.dtype)
            tensor.CopyFrom(numpy_helper.from_array(other, tensor.name))
    return model


def _quantizations_moved(model: Any, seed: int, by: float) -> Any | None:
    import numpy as np

    rng = np.random.default_rng(seed)
    count = 0
    for holder in [*graphs(model.graph), *model.functions]:
        nodes: list[Any] = []
        for node in list(holder.node):
            made = _moved(node, f"relaxc_moved_{count}", 1 + by * float(rng.choice((-1, 1))))
            count += len(made) > 1
            nodes += made
        del holder.node[:]
        holder.node.extend(nodes)
    return model if count else None


def _moved(node: Any, name: str, factor: float) -> list[Any]:
    """The node, and before or behind it what moves its scale."""
    from onnx import helper

    if node.domain not in ("", "ai.onnx"):
        return [node]
    if node.op_type in _RESULT_SCALE:
        at = _RESULT_SCALE[node.op_type]
        before = _times(node.input[at], name, factor)
        node.input[at] = name
        return [*before, node]
    if node.op_type == "DynamicQuantizeLinear":
        result, scale, zero = node.output
        node.output[0] = f"{name}_unmoved"
        again = helper.make_node("QuantizeLinear", [node.input[0], name, zero], [result])
        return [node, *_times(scale, name, factor), again]
    return [node]


def _times(scale: str, name: str, factor: float) -> list[Any]:
    """`name = scale * factor`; a scale in 16 bits, which newer opsets have, would not move by so little."""
    from onnx import TensorProto, helper

    number = helper.make_tensor(f"{name}_value", TensorProto.FLOAT, [], [factor])
    made = helper.make_node("Constant", [], [f"{name}_by"], value=number)
    return [made, helper.make_node("Mul", [scale, f"{name}_by"], [name])]


def graphs(graph: Any) -> Iterator[Any]:
    """Return a graph and those within its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from graphs(inner)
