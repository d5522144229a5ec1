"""What operators of ai.onnx.ml make of the scores of classes: post transforms, and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.common import scalar
from relaxc.service.frontend.onnx.values import Known

__all__ = ["column", "labels_of", "transformed"]

_NEAR_ZERO = 1e-7


def column(node: Node, scores: Any, place: int) -> Any:
    """Return one column, as a matrix."""
    return node.emit(relax.op.strided_slice(scores, [1], [place], [place + 1], [1], assume_inbound=True))


def transformed(node: Node, scores: Any, name: str) -> Any:
    """Return scores `[row, class]` after a `post_transform`. Raise Refused for one that is not computed."""
    if name == "NONE":
        return scores
    if name == "LOGISTIC":
        return node.emit(relax.op.sigmoid(scores))
    if name == "SOFTMAX":
        return node.emit(relax.op.nn.softmax(scores, 1))
    if name != "SOFTMAX_ZERO":
        raise Refused(f"post_transform={name}")
    size = node.emit(relax.op.abs(scores))
    near = node.emit(relax.op.less_equal(size, scalar(_NEAR_ZERO, size)))
    top = node.emit(relax.op.max(scores, [1], keepdims=True))
    # What is 0 is not exponentiated, but scaled as the others are.
    own = node.emit(relax.op.exp(node.emit(relax.op.subtract(scores, top))))
    scaled = node.emit(relax.op.multiply(scores, node.emit(relax.op.exp(node.emit(relax.op.negative(top))))))
    parts = node.emit(relax.op.where(near, scaled, own))
    return node.emit(relax.op.divide(parts, node.emit(relax.op.sum(parts, [1], keepdims=True))))


def labels_of(node: Node, integers: str, strings: str) -> Known:
    """Return the labels of classes as a known vector. Raise Refused for strings."""
    if node.attr(strings):
        raise Refused("labels that are strings")
    labels = np.array(node.attr(integers, ()), "int64")
    return Known(labels, "int64")
