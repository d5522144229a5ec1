"""The same model without the rounding of its activations: what a quantized network is an estimate of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relaxc.service.frontend.onnx.moved import MOVEMENT

__all__ = ["quantizes", "unquantized"]

_RANGES = {"INT8": (-128, 127), "UINT8": (0, 255), "INT16": (-32768, 32767), "UINT16": (0, 65535)}
_RANGES |= {"INT4": (-8, 7), "UINT4": (0, 15)}


def quantizes(model: Any) -> bool:
    """Return whether a node of the model's graph rounds to codes."""
    return any(node.op_type in ("QuantizeLinear", "QLinearConv", "QLinearMatMul") for node in model.graph.node)


def unquantized(model: Any) -> Any | None:
    """Return the model, changed in place, whose quantizations saturate and do not round; None where it has none.

    A quantizer leaves out a Relu before a quantization that saturates at 0, so the saturation is part of what is
    computed. Weights stay as they are dequantized. What reads codes otherwise than by DequantizeLinear, QLinearConv,
    QLinearMatMul and movement, such as MatMulInteger, reads rounded ones.
    """
    rewriting = _Rewriting(model)
    for node in list(model.graph.node):
        rewriting.take(node)
    if not rewriting.count:
        return None
    del model.graph.node[:]
    model.graph.node.extend(_needed(rewriting.nodes, [value.name for value in model.graph.output]))
    return model


def _needed(nodes: list[Any], outputs: list[str]) -> list[Any]:
    """Those that an output depends on; one with graphs of its own reads what nobody lists."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        inner = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        if inner:
            return nodes
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


@dataclass
class _Rewriting:
    model: Any
    nodes: list[Any] = field(default_factory=list)
    real: dict[str, str] = field(default_factory=dict)
    """A tensor of codes → the tensor of what they stand for, not rounded."""
    count: int = 0

    def __post_init__(self) -> None:
        import onnx

        self.dtypes = {tensor.name: tensor.data_type for tensor in self.model.graph.initializer}
        self.scalars = {tensor.name: tensor for tensor in self.model.graph.initializer if not tensor.dims}
        for node in self.model.graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.dtypes[node.output[0]] = node.attribute[0].t.data_type
        self.names = onnx.TensorProto.DataType

    def take(self, node: Any) -> None:
        """Add the node, or what computes without rounding what it computes with."""
        known = node.domain in ("", "ai.onnx")
        if known and node.op_type == "DequantizeLinear" and node.input[0] in self.real:
            self.emit("Identity", [self.real[node.input[0]]], list(node.output))
            return
        self.nodes.append(node)
        if not known:
            return
        if node.op_type == "QuantizeLinear":
            self.saturated(node, node.input[0], list(node.input)[1:])
        elif node.op_type in ("QLinearConv", "QLinearMatMul"):
            self.product(node)
        elif node.op_type in MOVEMENT and node.input and node.input[0] in self.real:
            self.movement(node)

    def emit(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        """Add a node; return its first output."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))
        return outputs[0]

    def saturated(self, node: Any, x: str, parameters: list[str]) -> None:
        """Add `real[codes] = min(max(x, lowest), highest)`, where there is one scale and a known dtype."""
        from onnx import helper

        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        kind = (
            self.dtypes.get(parameters[1]) if len(parameters) > 1 and parameters[1] else attributes.get("output_dtype")
        )
        name = self.names.Name(kind or self.names.Value("UINT8"))
        if name not in _RANGES or (len(parameters) > 1 and parameters[1] and kind is None):
            return
        self.count += 1
        codes = node.output[0]
        if not self.is_scalar(parameters[0]):  # of weights, or of blocks: nobody leaves a Relu out for these
            self.real[codes] = x
            return
        for limit, value in zip(("low", "high"), _RANGES[name], strict=True):
            if self.known_limit(f"{codes}_{limit}", value, parameters):
                continue
            tensor = helper.make_tensor(f"{codes}_{limit}_code", self.names.Value(name), [], [value])
            code = self.emit("Constant", [], [tensor.name], value=tensor)
            self.emit("DequantizeLinear", [code, *parameters], [f"{codes}_{limit}"])
        above = self.emit("Max", [x, f"{codes}_low"], [f"{codes}_above"])
        self.real[codes] = self.emit("Min", [above, f"{codes}_high"], [f"{codes}_real"])

    def known_limit(self, result: str, code: int, parameters: list[str]) -> bool:
        """Make what a code stands for an initializer, sooner taken than nodes; False where it is not known."""
        import numpy as np
        from onnx import numpy_helper

        if not all(name in self.scalars for name in parameters if name):
            return False
        scale, *zero = (numpy_helper.to_array(self.scalars[name]) for name in parameters if name)
        if scale.dtype != np.float32:
            return False
        value = np.float32(code - int(zero[0] if zero else 0)) * scale
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), result))
        return True

    def is_scalar(self, name: str) -> bool:
        """Return whether an initializer has no axes: one element along one would broadcast otherwise."""
        return name in self.scalars

    def of(self, codes: str, scale: str, zero: str, where: str, **attributes: Any) -> str:
        """Return what codes stand for."""
        given = [codes, scale, *([zero] if zero else [])]
        return self.real.get(codes) or self.emit("DequantizeLinear", given, [where], **attributes)

    def product(self, node: Any) -> None:
        x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, *bias = node.input
        name = node.output[0]
        left = self.of(x, x_scale, x_zero, f"{name}_left")
        if node.op_type == "QLinearMatMul":
            right = self.of(w, w_scale, w_zero, f"{name}_right", axis=-1)
            result = self.emit("MatMul", [left, right], [f"{name}_product"])
        else:
            inputs = [left, self.of(w, w_scale, w_zero, f"{name}_right", axis=0)]
            if bias and bias[0]:
                step = self.emit("Mul", [x_scale, w_scale], [f"{name}_step"])
                wide = self.emit("Cast", bias, [f"{name}_wide"], to=1)
                inputs.append(self.emit("Mul", [wide, step], [f"{name}_bias"]))
            result = self.emit("Conv", inputs, [f"{name}_product"])
            self.nodes[-1].attribute.extend(node.attribute)
        self.saturated(node, result, [scale, zero])

    def movement(self, node: Any) -> None:
        given = list(node.input)
        if node.op_type == "Concat" and not all(name in self.real for name in given):
            return
        copy = type(node).FromString(node.SerializeToString())
        for place, name in enumerate(given):
            copy.input[place] = self.real.get(name, name)
        for place, name in enumerate(node.output):
            copy.output[place] = self.real[name] = f"{name}_real" if name else ""
        self.nodes.append(copy)
