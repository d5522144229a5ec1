"""Quantized operators of ONNX Runtime (domain com.microsoft), as its quantizer writes them: dequantized, computed, and
quantized again; a Gemm in integers."""

from __future__ import annotations

from typing import Any

from tvm import relax

from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import aligned, cast, permuted, reshaped, scalar
from relaxc.service.frontend.onnx.ops.registry import op


def _dequantized(node: Node, data: int, scale: int) -> Any:
    """Input `data` as floats; its scale is input `scale`, its zero point the next."""
    x = node.tensor(data)
    return node.emit(relax.op.dequantize(x, node.tensor(scale), _zero(node, scale + 1, dtype_of(x)), 0, "float32"))


def _quantized(node: Node, x: Any, scale: int, dtype: str) -> Any:
    """Floats quantized by input `scale` and the zero point behind it."""
    return relax.op.quantize(x, node.tensor(scale), _zero(node, scale + 1, dtype), 0, dtype)


def _zero(node: Node, index: int, dtype: str) -> Any:
    return node.tensor(index) if node.has(index) else relax.const(0, dtype)


@op("com.microsoft::QLinearAdd", "com.microsoft::QLinearMul")
def _binary(node: Node) -> Any:
    function = relax.op.add if node.op.endswith("Add") else relax.op.multiply
    left, right = _dequantized(node, 0, 1), _dequantized(node, 3, 4)
    return _quantized(node, node.emit(function(*aligned(node, left, right))), 6, node.dtype(0))


@op("com.microsoft::QLinearSigmoid", "com.microsoft::QLinearLeakyRelu")
def _unary(node: Node) -> Any:
    x = _dequantized(node, 0, 1)
    y = relax.op.sigmoid(x) if node.op.endswith("Sigmoid") else relax.op.nn.leakyrelu(x, node.attr("alpha", 0.01))
    return _quantized(node, node.emit(y), 3, node.dtype(0))


@op("com.microsoft::QLinearSoftmax")
def _softmax(node: Node) -> Any:
    """Along an axis; before opset 13 of all axes from it on."""
    axis = node.attr("axis", -1) % node.rank(0)
    if node.attr("opset", 13) < 13 and axis != node.rank(0) - 1:
        raise Refused("an opset under 13 with an axis other than the last")
    return _quantized(node, node.emit(relax.op.nn.softmax(_dequantized(node, 0, 1), axis)), 3, node.dtype(0))


@op("com.microsoft::QLinearGlobalAveragePool")
def _average(node: Node) -> Any:
    axes = [*range(1, node.rank(0) - 1)] if node.attr("channels_last", 0) else [*range(2, node.rank(0))]
    mean = node.emit(relax.op.mean(_dequantized(node, 0, 1), axes, keepdims=True))
    return _quantized(node, mean, 3, node.dtype(0))


@op("com.microsoft::QLinearConcat")
def _concat(node: Node) -> Any:
    """Inputs: the result's scale and zero point, then each part with its own."""
    parts = [_dequantized(node, index, index + 1) for index in range(2, len(node.inputs), 3)]
    joined = node.emit(relax.op.concat(parts, node.attr("axis", 1)))
    return _quantized(node, joined, 0, node.dtype(1))


@op("com.microsoft::QGemm")
def _gemm(node: Node) -> Any:
    """`alpha · A' · B' + C`, C in int32 by the product of both scales; floats where the result has no scale."""
    operands = []
    for index, name in ((0, "transA"), (3, "transB")):
        x = node.emit(cast(node.tensor(index), "int32"))
        zero = node.emit(cast(_zero(node, index + 2, node.dtype(index)), "int32"))
        if node.shape_of(zero) not in ([], [1]) and node.attr(name, 0):
            zero = reshaped(node, zero, [*node.shape_of(zero), 1])
        x = node.emit(relax.op.subtract(*aligned(node, x, zero)))
        operands.append(permuted(node, x, [1, 0]) if node.attr(name, 0) else x)
    total = node.emit(relax.op.matmul(*operands))
    if node.has(6):
        total = node.emit(relax.op.add(*aligned(node, total, node.tensor(6))))
    factor = node.emit(relax.op.multiply(*aligned(node, node.tensor(1), node.tensor(4))))
    factor = node.emit(relax.op.multiply(factor, scalar(node.attr("alpha", 1.0), factor)))
    wide = node.emit(cast(total, "float32"))
    result = node.emit(relax.op.multiply(*aligned(node, wide, factor)))
    return _quantized(node, result, 7, node.dtype(0)) if node.has(7) else result
