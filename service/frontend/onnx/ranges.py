"""What range of an input a quantized model was made for: that of the codes that it becomes, or that it is."""

from __future__ import annotations

from typing import Any

from relaxc.service.frontend.onnx.file import bodies
from relaxc.service.frontend.onnx.moved import MOVEMENT

__all__ = ["has_codes", "index_ranges", "input_ranges"]

_LIMITS = {2: (0.0, 255.0), 3: (-128.0, 127.0), 4: (0.0, 65535.0), 5: (-32768.0, 32767.0)}
"""ONNX's number of a dtype of codes → its least and its largest."""

_UINT8 = 2

_READS_CODES = {"DequantizeLinear": (0,), "QLinearConv": (0, 3), "QLinearMatMul": (0, 3)}
_READS_CODES |= {"ConvInteger": (0, 1), "MatMulInteger": (0, 1)}
"""Operator → which of its inputs are codes."""


def has_codes(model: Any) -> bool:
    """Return whether a node of the model, or of a function of it, makes or reads codes."""
    operators = {node.op_type for body in bodies(model) for node in body.node}
    return not operators.isdisjoint({"QuantizeLinear", *_READS_CODES})


def input_ranges(model: Any) -> dict[str, tuple[float, float]]:
    """Return input → the range of what a QuantizeLinear of one scale makes of it, or of its own codes.

    Of inputs that are read as they are or moved, where scale and zero point are in the model; of several, the first.
    """
    import numpy as np
    from onnx import numpy_helper

    held = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            held[node.output[0]] = node.attribute[0].t
    kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.input if value.name not in held}
    origin = {name: name for name in kinds}
    found: dict[str, tuple[float, float]] = {}

    def take(node: Any) -> None:
        source = origin[node.input[0]]
        parameters = [held[name] for name in list(node.input)[1:3] if name in held]
        if len(parameters) != len(list(node.input)[1:3]):
            return
        scale, *zero = (numpy_helper.to_array(each) for each in parameters)
        kind = parameters[1].data_type if zero else _UINT8
        if scale.size != 1 or kind not in _LIMITS:
            return
        offset = float(zero[0].astype(np.float64).reshape(-1)[0]) if zero else 0.0
        low, high = ((limit - offset) * float(scale.reshape(-1)[0]) for limit in _LIMITS[kind])
        found.setdefault(source, (low, high))

    for node in model.graph.node:
        if node.op_type in MOVEMENT and node.input and node.input[0] in origin:
            origin.update((name, origin[node.input[0]]) for name in node.output)
        elif node.op_type == "QuantizeLinear" and node.input[0] in origin:
            take(node)
        for place in _READS_CODES.get(node.op_type, ()):
            source = origin.get(node.input[place]) if place < len(node.input) else None
            if source is not None and kinds[source] in _LIMITS:
                found.setdefault(source, _LIMITS[kinds[source]])
    return found


def index_ranges(model: Any) -> dict[str, tuple[float, float]]:
    """Return input of integers → the range of the places that it has in a table, or of the classes that it is one of.

    Of inputs that are read as they are, cast or moved; of several tables, the smallest. The data of large ones may be
    missing.
    """
    from onnx import helper, numpy_helper

    held = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            held[node.output[0]] = node.attribute[0].t
    origin = {
        value.name: value.name
        for value in model.graph.input
        if value.name not in held and value.type.tensor_type.elem_type in _INTEGERS
    }
    found: dict[str, int] = {}

    def small(name: str) -> Any:
        tensor = held.get(name)
        return numpy_helper.to_array(tensor) if tensor is not None and 0 < tensor.ByteSize() < _SMALL else None

    def count(node: Any) -> tuple[str, int] | None:
        """The value that a node reads as one of so many, and how many."""
        if node.op_type == "Gather" and node.input[0] in held:
            axis = next((helper.get_attribute_value(each) for each in node.attribute if each.name == "axis"), 0)
            dims = held[node.input[0]].dims
            return node.input[1], int(dims[axis]) if dims else 0
        if node.op_type == "OneHot" and (depth := small(node.input[1])) is not None and depth.size == 1:
            return node.input[0], int(depth.reshape(-1)[0])
        if node.op_type == "Equal":
            for name, other in (node.input, list(node.input)[::-1]):
                if (classes := small(other)) is not None and classes.dtype.kind in "iu" and classes.size > 2:
                    return name, int(classes.max()) + 1
        return None

    for node in model.graph.node:
        if node.op_type in (MOVEMENT | {"Cast"}) and node.input and node.input[0] in origin:
            origin.update((name, origin[node.input[0]]) for name in node.output)
        read = count(node)
        if read is not None and read[0] in origin and read[1] > 1:
            source = origin[read[0]]
            found[source] = min(found.get(source, read[1]), read[1])
    return {name: (0.0, size - 1.0) for name, size in found.items()}


_SMALL = 1 << 12
_INTEGERS = frozenset((2, 3, 4, 5, 6, 7, 12, 13))
"""ONNX's numbers of their dtypes."""
