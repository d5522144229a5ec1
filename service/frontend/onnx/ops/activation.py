"""Activation functions, Softmax included."""

from __future__ import annotations

from typing import Any

from tvm import relax

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.common import aligned, full_precision, is_integer, reshaped, scalar
from relaxc.service.frontend.onnx.ops.registry import op

__all__ = ["exponential_unit", "hard_sigmoid", "softplus"]


@op("Relu")
def _relu(node: Node) -> Any:
    return relax.op.nn.relu(node.tensor(0))


@op("Sigmoid")
def _sigmoid(node: Node) -> Any:
    return relax.op.sigmoid(node.tensor(0))


@op("LeakyRelu")
def _leaky_relu(node: Node) -> Any:
    return relax.op.nn.leakyrelu(node.tensor(0), node.attr("alpha", 0.01))


def exponential_unit(node: Node, x: Any, alpha: float, gamma: float = 1.0, scale: float = 1.0) -> Any:
    """Return `gamma·x` where x > 0, else `gamma·alpha·(exp(x/scale) - 1)`."""
    # exp of the positive side could overflow, and its inf would be thrown away.
    negative = node.emit(relax.op.minimum(x, scalar(0, x)))
    scaled = negative if scale == 1.0 else node.emit(relax.op.divide(negative, scalar(scale, x)))
    curve = node.emit(relax.op.subtract(node.emit(relax.op.exp(scaled)), scalar(1, x)))
    curve = node.emit(relax.op.multiply(curve, scalar(alpha * gamma, x)))
    line = x if gamma == 1.0 else node.emit(relax.op.multiply(x, scalar(gamma, x)))
    return relax.op.where(node.emit(relax.op.greater(x, scalar(0, x))), line, curve)


@op("Elu")
def _elu(node: Node) -> Any:
    return exponential_unit(node, node.tensor(0), node.attr("alpha", 1.0))


@op("Selu")
def _selu(node: Node) -> Any:
    alpha = node.attr("alpha", 1.67326319217681884765625)
    return exponential_unit(node, node.tensor(0), alpha, node.attr("gamma", 1.05070102214813232421875))


@op("Celu")
def _celu(node: Node) -> Any:
    alpha = node.attr("alpha", 1.0)
    return exponential_unit(node, node.tensor(0), alpha, scale=alpha)


@op("ThresholdedRelu")
def _thresholded_relu(node: Node) -> Any:
    x = node.tensor(0)
    return relax.op.where(node.emit(relax.op.greater(x, scalar(node.attr("alpha", 1.0), x))), x, scalar(0, x))


@op("PRelu")
def _parametric_relu(node: Node) -> Any:
    """`slope` broadcasts to x from the right."""
    x, slope = aligned(node, node.tensor(0), node.tensor(1))
    scaled = node.emit(relax.op.multiply(x, slope))
    return relax.op.where(node.emit(relax.op.less(x, scalar(0, x))), scaled, x)


def softplus(node: Node, x: Any) -> Any:
    """Return `log(1 + exp(x))` without overflow: `max(x, 0) + log(1 + exp(-|x|))`."""
    decay = node.emit(relax.op.exp(node.emit(relax.op.negative(node.emit(relax.op.abs(x))))))
    tail = node.emit(relax.op.log(node.emit(relax.op.add(scalar(1, x), decay))))
    return node.emit(relax.op.add(node.emit(relax.op.maximum(x, scalar(0, x))), tail))


@op("Softplus")
def _softplus(node: Node) -> Any:
    return softplus(node, node.tensor(0))


@op("Mish")
def _mish(node: Node) -> Any:
    x = node.tensor(0)
    return relax.op.multiply(x, node.emit(relax.op.tanh(softplus(node, x))))


@op("Softsign")
def _softsign(node: Node) -> Any:
    x = node.tensor(0)
    return relax.op.divide(x, node.emit(relax.op.add(scalar(1, x), node.emit(relax.op.abs(x)))))


def hard_sigmoid(node: Node, x: Any, alpha: float, beta: float) -> Any:
    """Return `max(0, min(1, alpha·x + beta))`."""
    line = node.emit(relax.op.add(node.emit(relax.op.multiply(x, scalar(alpha, x))), scalar(beta, x)))
    return node.emit(relax.op.maximum(scalar(0, x), node.emit(relax.op.minimum(scalar(1, x), line))))


@op("HardSigmoid")
def _hard_sigmoid(node: Node) -> Any:
    return hard_sigmoid(node, node.tensor(0), node.attr("alpha", 0.2), node.attr("beta", 0.5))


@op("HardSwish")
def _hard_swish(node: Node) -> Any:
    x = node.tensor(0)
    return relax.op.multiply(x, hard_sigmoid(node, x, 1 / 6, 0.5))


@op("Swish")
def _swish(node: Node) -> Any:
    x, alpha = node.tensor(0), node.attr("alpha", 1.0)
    scaled = x if alpha == 1.0 else node.emit(relax.op.multiply(x, scalar(alpha, x)))
    return relax.op.multiply(x, node.emit(relax.op.sigmoid(scaled)))


@op("Shrink")
def _shrink(node: Node) -> Any:
    """`x - bias` above lambd, `x + bias` below -lambd, 0 between; integers are truncated last."""
    bias, limit = node.attr("bias", 0.0), node.attr("lambd", 0.5)
    if is_integer(node.dtype(0)):
        return full_precision(node, lambda x: _shrunk(node, x, bias, limit), node.tensor(0))
    return _shrunk(node, node.tensor(0), bias, limit)


def _shrunk(node: Node, x: Any, bias: float, limit: float) -> Any:
    down = node.emit(relax.op.subtract(x, scalar(bias, x)))
    up = node.emit(relax.op.add(x, scalar(bias, x)))
    low = node.emit(relax.op.where(node.emit(relax.op.less(x, scalar(-limit, x))), up, scalar(0, x)))
    return relax.op.where(node.emit(relax.op.greater(x, scalar(limit, x))), down, low)


@op("Gelu", "com.microsoft::Gelu")
def _gelu(node: Node) -> Any:
    approximate = node.attr("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise Refused(f"approximate={approximate}")
    return relax.op.nn.gelu_tanh(node.tensor(0)) if approximate == "tanh" else relax.op.nn.gelu(node.tensor(0))


@op("Softmax", "LogSoftmax")
def _softmax(node: Node) -> Any:
    """Before opset 13 the axes from `axis` on are one."""
    function = relax.op.nn.softmax if node.op == "Softmax" else relax.op.nn.log_softmax
    x, shape = node.tensor(0), node.shape(0)
    if node.opset >= 13:
        axis = node.attr("axis", -1) % len(shape)
        return full_precision(node, lambda value: function(value, axis), x)
    axis = node.attr("axis", 1) % len(shape)
    flat = reshaped(node, x, [onnx_dims.product(shape[:axis]), onnx_dims.product(shape[axis:])])
    return reshaped(node, node.emit(full_precision(node, lambda value: function(value, 1), flat)), shape)


@op("Hardmax")
def _hardmax(node: Node) -> Any:
    """1 at the first maximum along the axis, 0 elsewhere."""
    x, shape = node.tensor(0), node.shape(0)
    if node.opset < 13 and node.attr("axis", 1) % len(shape) != len(shape) - 1:
        raise Refused("an axis that is not the last one, before opset 13")
    axis = node.attr("axis", -1 if node.opset >= 13 else 1) % len(shape)
    first = node.emit(relax.op.argmax(x, axis=axis, keepdims=True))
    if not isinstance(shape[axis], int):
        raise Refused("an axis of symbolic size")
    places = node.emit(relax.op.arange(0, shape[axis], 1, "int64"))
    places = reshaped(node, places, [shape[axis] if i == axis else 1 for i in range(len(shape))])
    return relax.op.astype(node.emit(relax.op.equal(places, first)), node.dtype(0))
