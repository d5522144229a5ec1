"""The same model with the scale of each quantization moved a little, so that values near a boundary fall otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["moved"]

_RESULT_SCALE = {"QuantizeLinear": 1, "QLinearConv": 6, "QLinearMatMul": 6}
"""Operator → which input is the scale that it quantizes with."""


def moved(model: Any, seed: int, by: float) -> Any | None:
    """Return the model in which each quantization divides by its scale times 1 + `by` or 1 - `by`, as `seed` decides.

    What dequantizes keeps its scale. The model is changed in place; None where it quantizes nothing.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    count = 0
    for holder in [*_graphs(model.graph), *model.functions]:
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


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _graphs(inner)
