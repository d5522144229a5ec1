"""Operators that ONNX Runtime's optimizers write (domain com.microsoft), where they are cheap to have."""

from __future__ import annotations

from typing import Any

from tvm import relax

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.common import aligned, full_precision, permuted, scalar
from relaxc.service.frontend.onnx.ops.matmul import matmul
from relaxc.service.frontend.onnx.ops.normalization import rms_norm
from relaxc.service.frontend.onnx.ops.registry import op


@op("com.microsoft::FastGelu", "com.microsoft::BiasGelu")
def _gelu_with_bias(node: Node) -> Any:
    x = node.tensor(0)
    if node.has(1):
        x = node.emit(relax.op.add(*aligned(node, x, node.tensor(1))))
    return relax.op.nn.gelu_tanh(x) if node.op.endswith("FastGelu") else relax.op.nn.gelu(x)


@op("com.microsoft::QuickGelu")
def _quick_gelu(node: Node) -> Any:
    """`x · sigmoid(alpha · x)`."""
    x = node.tensor(0)
    scaled = node.emit(relax.op.multiply(x, scalar(node.attr("alpha", 1.702), x)))
    return relax.op.multiply(x, node.emit(relax.op.sigmoid(scaled)))


@op("com.microsoft::FusedMatMul")
def _fused_matmul(node: Node) -> Any:
    """`alpha · A' · B'`, either transposed in its last two axes."""
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        raise Refused("transBatchA or transBatchB")
    operands = []
    for index, name in enumerate(("transA", "transB")):
        x, rank = node.tensor(index), node.rank(index)
        order = [*range(rank - 2), rank - 1, rank - 2]
        operands.append(permuted(node, x, order) if node.attr(name, 0) else x)
    product = matmul(node, *operands)
    alpha = node.attr("alpha", 1.0)
    return product if alpha == 1.0 else relax.op.multiply(product, scalar(alpha, product))


def _skipped(node: Node, bias: int) -> Any:
    total = node.emit(relax.op.add(*aligned(node, node.tensor(0), node.tensor(1))))
    if node.has(bias):
        total = node.emit(relax.op.add(*aligned(node, total, node.tensor(bias))))
    return total


@op("com.microsoft::SkipLayerNormalization")
def _skip_layer_norm(node: Node) -> Any:
    """The norm of input + skip (+ bias); the sum is the fourth output."""
    total = _skipped(node, 4)
    beta = node.tensor(3) if node.has(3) else node.emit(relax.op.zeros_like(node.tensor(2)))
    epsilon = node.attr("epsilon", 1e-12)

    def norm(x: Any, scale: Any, bias: Any) -> Any:
        return relax.op.nn.layer_norm(x, scale, bias, [-1], epsilon)

    return _with_sum(node, node.emit(full_precision(node, norm, total, node.tensor(2), beta)), total)


@op("com.microsoft::SkipSimplifiedLayerNormalization")
def _skip_rms_norm(node: Node) -> Any:
    total = _skipped(node, 3)
    return _with_sum(node, node.emit(rms_norm(node, total, node.tensor(2), -1, node.attr("epsilon", 1e-12))), total)


def _with_sum(node: Node, y: Any, total: Any) -> Any:
    if node.output_count == 1:
        return y
    if node.output_count < 4:
        raise Refused("the mean or the deviation as an output")
    return y, None, None, total
