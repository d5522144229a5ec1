"""Products of bytes for ONNX Runtime as it sums them exactly on every CPU: both operands of one sign.

    MatMulInteger(a: uint8, b: int8, z)  →  MatMulInteger(a, uint8(int32(b) + 128), uint8(int32(z) + 128))

On an x86 without VNNI its kernels for operands of two signs add pairs of products in 16 bits, which saturate: 255 * 127
* 64 came out as half of that. Its kernels for two of one sign do not, nor does a CPU with VNNI.
"""

from __future__ import annotations

from typing import Any

from relaxc.service.frontend.onnx.file import subgraphs
from relaxc.service.frontend.onnx.noise import dtypes_of

__all__ = ["mixes_signs", "with_equal_signs"]

_MADE = -1
"""In the place of an operand that the operator makes itself, as uint8."""

_OPERANDS: dict[str, tuple[tuple[int, int], ...]] = {
    **dict.fromkeys(("QLinearMatMul", "QLinearConv", "QGemm"), ((0, 2), (3, 5))),
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), ((0, 2), (1, 3))),
    "MatMulIntegerToFloat": ((0, 4), (1, 5)),
    "QAttention": ((0, 6), (1, 7)),
    "DynamicQuantizeMatMul": ((_MADE, _MADE), (1, 3)),
    "DynamicQuantizeLSTM": ((_MADE, _MADE), (1, 9), (2, 11)),
}
"""Operator → the place of each operand among its inputs, and that of its zero point."""

_OFFSET, _ZERO = "relaxc.exact.offset", "relaxc.exact.zero"


def mixes_signs(model: Any) -> bool:
    """Return whether a model, or its bytes, has operators that may multiply bytes of two signs."""
    if isinstance(model, bytes):
        return any(name.encode() in model for name in _OPERANDS)
    return any(node.op_type in _OPERANDS for graph in _graphs(model) for node in graph.node)


def with_equal_signs(model: Any) -> bool:
    """Change the operands of `model`'s products that are int8 beside uint8 to uint8; return whether there were any."""
    from onnx import TensorProto, helper

    kinds, found = dtypes_of(model), False
    for graph in _graphs(model):
        nodes: list[Any] = []
        for node in graph.node:
            places = _OPERANDS.get(node.op_type, ())
            given = [TensorProto.UINT8 if at == _MADE else kinds.get(node.input[at]) for at, _ in places]
            if set(given) == {TensorProto.UINT8, TensorProto.INT8}:
                signed = [place for place, kind in zip(places, given, strict=True) if kind == TensorProto.INT8]
                nodes += [made for place in signed for made in _shifted(node, *place)]
                found = True
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
    if found:
        model.graph.initializer.append(helper.make_tensor(_OFFSET, TensorProto.INT32, [], [128]))
        model.graph.initializer.append(helper.make_tensor(_ZERO, TensorProto.UINT8, [], [128]))
    return found


def _shifted(node: Any, operand: int, zero: int) -> list[Any]:
    """Change a node's operand and its zero point; return the nodes that make them."""
    made = _as_unsigned(node, operand)
    if zero < len(node.input) and node.input[zero]:
        return made + _as_unsigned(node, zero)
    node.input.extend([""] * (zero + 1 - len(node.input)))
    node.input[zero] = _ZERO
    return made


def _as_unsigned(node: Any, place: int) -> list[Any]:
    from onnx import TensorProto, helper

    held = node.input[place]
    wide, moved, bytes_ = (f"relaxc.exact.{node.output[0]}.{place}.{step}" for step in ("wide", "moved", "bytes"))
    node.input[place] = bytes_
    return [
        helper.make_node("Cast", [held], [wide], to=TensorProto.INT32),
        helper.make_node("Add", [wide, _OFFSET], [moved]),
        helper.make_node("Cast", [moved], [bytes_], to=TensorProto.UINT8),
    ]


def _graphs(model: Any) -> list[Any]:
    """The model's graph and its subgraphs; functions, which see no constants of the graph's, stay as they are."""
    return [model.graph, *subgraphs(model.graph.node)]
