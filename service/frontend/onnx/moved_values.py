"""The same model with every value that it computes in floats moved a little, anew in each run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from relaxc.service.frontend.model import Move, Reference
from relaxc.service.frontend.onnx.moved import MOVEMENT, graphs, moved

__all__ = ["move_values", "moves_inputs"]

_LEAST_OPSET = 8
"""Since which Max and Min broadcast."""

_MOST = 1e30
"""Of a value that moves by a share of itself: fillers of -3.4e38 are to be no infinities."""

_CANCELS = frozenset(
    {"Celu", "Elu", "FastGelu", "Gelu", "LogSoftmax", "Mish", "QuickGelu", "Selu", "Softplus", "BiasGelu"}
)
"""Operators within which 1 or so is added and taken away: an exact result near 0 is off by a unit of 1."""

_RECURRENT = ("LSTM", "GRU", "RNN")
"""Operators that are many products, and functions of these: what rounds within them is as if the operands moved."""


def move_values(model: Any, seed: int, by: float) -> Any | None:
    """Return the model, all of whose data it holds itself, with its weights moved, and in each run what its nodes
    compute in floats: `y + u clip(y)`, each element's u from -`by` to `by`. It is changed in place.

    What a convolution over windows reads moves by a share of the largest of its image, as Winograd's algorithm and FFTs
    spread over the image what they round. Nodes within others' graphs and in functions stay. None for an opset that is
    too old.
    """
    opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
    if opset < _LEAST_OPSET:
        return None
    dtypes = _dtypes(model)
    model = moved(model, Move.WEIGHTS, seed, by)
    moving = _Moving(by, seed)
    moving.sizes = {tensor.name for graph in graphs(model.graph) for tensor in graph.initializer} | {""}
    moving.graph(model.graph, dtypes)
    held = [(f"relaxc_{name}", value) for name, value in (("low", -_MOST), ("high", _MOST), ("one", 1.0))]
    from onnx import helper

    constants = [helper.make_tensor(name, _FLOAT, [], [value]) for name, value in held]
    constants += [helper.make_tensor(f"{name}_wide", _DOUBLE, [], [value]) for name, value in held]
    model.graph.initializer.extend(constants)
    return model


def moves_inputs(run: Reference, seed: int, by: float) -> Reference:
    """Return what runs with each floating input moved by up to `by` of itself, anew in each run."""
    draw = np.random.default_rng(seed)

    def again(inputs: Mapping[str, Any], /) -> dict[str, Any]:
        return run({name: _moved(value, draw, by) for name, value in inputs.items()})

    return again


def _moved(value: Any, draw: np.random.Generator, by: float) -> Any:
    if value.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        return value
    wide = value.astype(np.float64)
    return np.asarray(wide + by * draw.uniform(-1, 1, value.shape) * wide.clip(-_MOST, _MOST)).astype(value.dtype)


_FLOAT, _DOUBLE = 1, 11
_FLOATS = (_FLOAT, _DOUBLE, 10, 16)
"""onnx.TensorProto: FLOAT, DOUBLE, FLOAT16, BFLOAT16."""


def _dtypes(model: Any) -> dict[str, int]:
    """Name of a value → its element type, as far as it is known."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if len(tensor.raw_data) > 1 << 12:
            tensor.ClearField("raw_data")
    return {
        value.name: value.type.tensor_type.elem_type
        for graph in graphs(onnx.shape_inference.infer_shapes(copy).graph)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


class _Moving:
    """What is put before and behind nodes."""

    def __init__(self, by: float, seed: int) -> None:
        self.by, self.seed, self.count = by, seed, 0
        self.sizes: set[str] = set()
        """What shapes alone decide: a size that is moved is another."""

    def graph(self, graph: Any, dtypes: Mapping[str, int]) -> None:
        """Move what a graph's nodes read and give."""
        nodes = [made for node in list(graph.node) for made in self.node(node, dtypes)]
        del graph.node[:]
        graph.node.extend(nodes)

    def node(self, node: Any, dtypes: Mapping[str, int]) -> list[Any]:
        """Return the node with what moves what it reads and gives, and within it what its branches do."""
        if node.op_type == "If":
            for attribute in node.attribute:
                self.graph(attribute.g, dtypes)
            return [node]
        if node.op_type in ("Shape", "Size") or all(name in self.sizes for name in node.input):
            self.sizes.update(node.output)
            return [node]
        if node.op_type in MOVEMENT:
            return [node]
        made: list[Any] = []
        if node.op_type == "Conv" and dtypes.get(node.input[0]) in _FLOATS and _has_window(node):
            made += self.near(node.input[0], name := self.name(), dtypes[node.input[0]], "image")
            node.input[0] = name
        if node.op_type in _RECURRENT and (dtype := dtypes.get(node.input[0], 0)) in _FLOATS:
            for place in (0, 1, 2):
                made += self.near(node.input[place], name := self.name(), dtype, "")
                node.input[place] = name
        made.append(node)
        for place, name in enumerate(node.output):
            if name and dtypes.get(name) in _FLOATS:
                node.output[place] = self.name()
                made += self.near(node.output[place], name, dtypes[name], "one" if node.op_type in _CANCELS else "")
        return made

    def name(self) -> str:
        """Return a new name."""
        self.count += 1
        return f"relaxc_moved_{self.count}"

    def near(self, x: str, result: str, dtype: int, beside: str) -> list[Any]:
        """Make `result = x + u size`: x, clipped, beside "one" |x| + 1, and beside an "image" its channel's largest."""
        from onnx import helper

        wide = dtype == _DOUBLE
        kind, tail, name = (_DOUBLE, "_wide", self.name()) if wide else (_FLOAT, "", self.name())
        y = x if dtype in (_FLOAT, _DOUBLE) else f"{name}_y"
        nodes = [] if y == x else [helper.make_node("Cast", [x], [y], to=kind)]
        size = f"{name}_size"
        if beside == "image" and not wide:
            nodes.append(helper.make_node("Abs", [y], [f"{name}_abs"]))
            nodes.append(helper.make_node("GlobalMaxPool", [f"{name}_abs"], [size]))
        else:
            nodes.append(helper.make_node("Max", [y, f"relaxc_low{tail}"], [f"{name}_above"]))
            nodes.append(helper.make_node("Min", [f"{name}_above", f"relaxc_high{tail}"], [f"{name}_clipped"]))
            if beside == "one":
                nodes.append(helper.make_node("Abs", [f"{name}_clipped"], [f"{name}_abs"]))
                nodes.append(helper.make_node("Add", [f"{name}_abs", f"relaxc_one{tail}"], [size]))
            else:
                size = f"{name}_clipped"
        seed = float(self.seed + self.count)
        total = result if y == x else f"{name}_sum"
        nodes += [
            helper.make_node("RandomUniformLike", [y], [f"{name}_u"], low=-self.by, high=self.by, seed=seed),
            helper.make_node("Mul", [f"{name}_u", size], [f"{name}_by"]),
            helper.make_node("Add", [y, f"{name}_by"], [total]),
        ]
        return nodes if y == x else [*nodes, helper.make_node("Cast", [total], [result], to=dtype)]


def _has_window(conv: Any) -> bool:
    """Whether it reads more than one place of an image for each; its weights may not say."""
    kernel = next((each.ints for each in conv.attribute if each.name == "kernel_shape"), (0,))
    return any(size != 1 for size in kernel)
