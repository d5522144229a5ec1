"""The same model with its quantizations or weights moved a little, so that values near a boundary fall otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from relaxc.service.frontend.model import Move
from relaxc.service.frontend.onnx.file import tensors
from relaxc.service.frontend.onnx.noise import Noise

__all__ = ["MOVEMENT", "graphs", "moved"]

_RESULT_SCALE = {"QLinearConv": 6, "QLinearMatMul": 6}
"""Operator on codes → which input is the scale that it quantizes its result with."""

_MICROSOFT = "com.microsoft"
_RESULT_SCALE |= {
    f"{_MICROSOFT}::{name}": at
    for at, names in {
        0: ["QLinearConcat"],
        3: ["QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"],
        6: ["QLinearAdd", "QLinearMul"],
        7: ["QGemm"],
    }.items()
    for name in names
}

_QUANTIZES = ("QuantizeLinear", "DynamicQuantizeLinear")

MOVEMENT = frozenset(
    {"Concat", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "Split", "Squeeze", "Tile"}
    | {"Transpose", "Unsqueeze"}
)
"""Operators that choose among the values that they are given, and compute none."""

_EXACT = MOVEMENT | {"QuantizeLinear", "DynamicQuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger"}
"""What is the same to the bit wherever it is right, of values that are: integers, and single roundings of IEEE's."""

_CAST_LIKE = 15
"""The opset since which there is CastLike; what is quantized in older ones is float32."""

_SLICE = 13
"""The opset since which Slice and Reshape are what they are."""

_SMALL = 2.0**-20
"""Sums of fillers of -3.4e38, which masks have, times this are no infinity."""

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def moved(
    model: Any, move: Move, seed: int, by: float, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Any | None:
    """Return the model with `move` of it moved by `by`, as `seed` decides; it is changed in place.

    `shapes` are those of the tensors of its graph that are known, which makes it faster.

    Quantizations move anew in each run: what one rounds is off by up to `by` of itself and of the mean size of its
    tensor, each element by a number of its own. None where the model has none that others may decide otherwise. What
    dequantizes keeps its scale.
    """
    if move is Move.QUANTIZATIONS:
        if _opset(model) < _SLICE:
            shapes = None
        return _quantizations_moved(model, seed, by, Noise(shapes, by / _SMALL, float(seed), _SMALL))
    return _weights_moved(model, seed, by)


def _opset(model: Any) -> int:
    return int(next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1))


def _weights_moved(model: Any, seed: int, by: float) -> Any:
    """The model, all of whose data it holds itself, with other weights; a number alone is no weight, nor is what a
    size is made by.
    """
    import numpy as np
    from onnx import numpy_helper

    draw = np.random.default_rng(seed)
    nodes = [node for holder in [*graphs(model.graph), *model.functions] for node in holder.node]
    scales = {name for node in nodes if node.op_type in ("Resize", "Upsample") for name in list(node.input)[1:]}
    for node in nodes:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                attribute.t.name = node.output[0]
    for tensor in tensors(model):
        value = numpy_helper.to_array(tensor)
        if value.dtype.name in _FLOATS and value.size > 1 and tensor.name not in scales:
            other = (value * (1 + by * draw.uniform(-1, 1, value.shape))).astype(value.dtype)
            tensor.CopyFrom(numpy_helper.from_array(other, tensor.name))
    return model


def _quantizations_moved(model: Any, seed: int, by: float, noise: Noise) -> Any | None:
    count = 0
    opset = _opset(model)
    exact = {value.name for value in model.graph.input} | {""}
    for place, holder in enumerate([*graphs(model.graph), *model.functions]):
        numbers = noise if place == 0 else Noise()  # names in others may be those of the graph
        exact |= {tensor.name for tensor in getattr(holder, "initializer", ())}
        nodes: list[Any] = []
        for node in list(holder.node):
            # ONNX says what its operators are of exact values, and nobody in which order those of a domain round.
            decided = node.domain in ("", "ai.onnx") and all(name in exact for name in node.input)
            if decided and node.op_type in _EXACT | {"Constant"}:
                exact.update(node.output)
            made = [node] if decided else _moved(node, count, by, float(seed + 1 + count), opset, numbers)
            count += len(made) > 1
            nodes += made
        del holder.node[:]
        holder.node.extend(nodes)
    nodes = [*noise.first(), *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(noise.initializers)
    return model if count else None


def _moved(node: Any, index: int, by: float, seed: float, opset: int, noise: Noise) -> list[Any]:
    """The node, and before or behind it what moves its scale, or what it rounds."""
    from onnx import helper

    name = f"relaxc_moved_{index}"
    kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
    at = _RESULT_SCALE.get(kind, len(node.input))
    if at < len(node.input) and node.input[at]:
        before = _times(node.input[at], name, by, seed)
        node.input[at] = name
        return [*before, node]
    if kind == "DynamicQuantizeLinear":
        result, scale, zero = node.output
        node.output[0] = f"{name}_unmoved"
        again = helper.make_node("QuantizeLinear", [name, scale, zero], [result])
        return [node, *_near(again, node.input[0], index, by, seed, opset, noise), again]
    if kind == "QuantizeLinear":
        before = _near(node, node.input[0], index, by, seed, opset, noise)
        node.input[0] = name
        return [*before, node]
    return [node]


def _near(quantize: Any, x: str, index: int, by: float, seed: float, opset: int, noise: Noise) -> list[Any]:
    """`relaxc_moved_{index} = x + u (|y| + mean |y|)`, u from -`by` to `by`; y is what `quantize` leaves of x. That
    saturates: a filler of -3.4e38 has no part in the mean.
    """
    from onnx import TensorProto, helper

    name, wide = f"relaxc_moved_{index}", by / _SMALL
    small = helper.make_tensor("", TensorProto.FLOAT, [], [_SMALL])
    parameters = list(quantize.input)[1:]
    steps = helper.make_node("QuantizeLinear", [x, *parameters], [f"{name}_q"])
    back = helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_y"])
    steps.attribute.extend(quantize.attribute)
    back.attribute.extend(each for each in quantize.attribute if each.name in ("axis", "block_size"))
    if (numbers := noise.of(x, index)) is not None:
        unit, drawn = noise.small, []
    else:
        unit, numbers = f"{name}_unit", f"{name}_u"
        drawn = [
            helper.make_node("Constant", [], [f"{name}_small"], value=small),
            helper.make_node("Identity", [f"{name}_small"], [unit])
            if opset < _CAST_LIKE
            else helper.make_node("CastLike", [f"{name}_small", f"{name}_y"], [unit]),
            helper.make_node("RandomUniformLike", [f"{name}_y"], [numbers], low=-wide, high=wide, seed=seed),
        ]
    return [
        steps,
        back,
        *drawn,
        helper.make_node("Mul", [f"{name}_y", unit], [f"{name}_scaled"]),
        helper.make_node("Abs", [f"{name}_scaled"], [f"{name}_size"]),
        helper.make_node("ReduceMean", [f"{name}_size"], [f"{name}_mean"], keepdims=0),
        helper.make_node("Add", [f"{name}_size", f"{name}_mean"], [f"{name}_scale"]),
        helper.make_node("Mul", [f"{name}_scale", numbers], [f"{name}_by"]),
        helper.make_node("Add", [x, f"{name}_by"], [name]),
    ]


def _times(scale: str, name: str, by: float, seed: float) -> list[Any]:
    """`name = scale * u` with u from 1 - `by` to 1 + `by`; a scale in 16 bits would not move by so little."""
    from onnx import helper

    return [
        helper.make_node("RandomUniformLike", [scale], [f"{name}_u"], low=1 - by, high=1 + by, seed=seed),
        helper.make_node("Mul", [scale, f"{name}_u"], [name]),
    ]


def graphs(graph: Any) -> Iterator[Any]:
    """Return a graph and those within its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from graphs(inner)
