"""Operators of ai.onnx.ml on tables of features: scaled, normalized, imputed, encoded, and linear models of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import cast, constant, reshaped, scalar
from relaxc.service.frontend.onnx.ops.matmul import matmul
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.ops.scores import labels_of, transformed


def _floats(node: Node) -> Any:
    return node.emit(cast(node.tensor(0), "float32")) if node.dtype(0) != "float32" else node.tensor(0)


def _row(node: Node, name: str, default: float) -> Any:
    """An attribute with a number for each feature, or one for all."""
    values = np.array(node.attr(name, (default,)), "float32")
    return constant(values if values.size > 1 else values.reshape(()))


@op("ai.onnx.ml::Scaler")
def _scaler(node: Node) -> Any:
    shifted = node.emit(relax.op.subtract(_floats(node), _row(node, "offset", 0)))
    return relax.op.multiply(shifted, _row(node, "scale", 1))


@op("ai.onnx.ml::Normalizer")
def _normalizer(node: Node) -> Any:
    """Along the last axis; a row whose norm is 0 stays as it is."""
    x, norm = _floats(node), node.attr("norm", "MAX")
    if norm == "MAX":
        size = node.emit(relax.op.max(node.emit(relax.op.abs(x)), [-1], keepdims=True))
    elif norm == "L1":
        size = node.emit(relax.op.sum(node.emit(relax.op.abs(x)), [-1], keepdims=True))
    else:
        total = node.emit(relax.op.sum(node.emit(relax.op.multiply(x, x)), [-1], keepdims=True))
        size = node.emit(relax.op.sqrt(total))
    is_zero = node.emit(relax.op.equal(size, scalar(0, size)))
    return relax.op.divide(x, node.emit(relax.op.where(is_zero, scalar(1, size), size)))


@op("ai.onnx.ml::Imputer")
def _imputer(node: Node) -> Any:
    is_float = node.dtype(0).startswith("float")
    kind = "float" if is_float else "int64"
    values = np.array(node.attr(f"imputed_value_{kind}s", ()), "float32" if is_float else "int64")
    if not values.size:
        raise Refused("no values to impute of the input's dtype")
    gone = node.attr(f"replaced_value_{kind}", 0)
    x = node.tensor(0)
    lacks = relax.op.isnan(x) if is_float and math.isnan(gone) else relax.op.equal(x, scalar(gone, x))
    filler = node.emit(cast(constant(values if values.size > 1 else values.reshape(())), dtype_of(x)))
    return relax.op.where(node.emit(lacks), filler, x)


@op("ai.onnx.ml::Binarizer")
def _binarizer(node: Node) -> Any:
    x = node.tensor(0)
    return cast(node.emit(relax.op.greater(x, scalar(node.attr("threshold", 0.0), x))), dtype_of(x))


@op("ai.onnx.ml::FeatureVectorizer")
def _joined(node: Node) -> Any:
    parts = [node.emit(cast(node.tensor(place), "float32")) for place in range(len(node.inputs))]
    return relax.op.concat(parts, 1) if len(parts) > 1 else parts[0]


@op("ai.onnx.ml::ArrayFeatureExtractor")
def _columns(node: Node) -> Any:
    """Places of the last axis."""
    x, shape = node.tensor(0), node.shape(0)
    if len(shape) == 1:
        x = reshaped(node, x, [1, *shape])
    places = reshaped(node, node.tensor(1), [math.prod(node.static_shape(1, "the list of places"))])
    return relax.op.take(x, places, node.rank(0) - 1 if len(shape) > 1 else 1, mode="clip")


def _linear(node: Node, rows: int) -> Any:
    """The products with `coefficients`, a row of which is of one result, and the intercepts added."""
    weights = np.array(node.attr("coefficients"), "float32").reshape(rows, -1)
    x = _floats(node)
    if node.rank(0) == 1:
        x = reshaped(node, x, [1, *node.shape(0)])
    scores = matmul(node, x, constant(np.ascontiguousarray(weights.T)))
    given = node.attr("intercepts", ())
    return node.emit(relax.op.add(scores, constant(np.array(given, "float32")))) if given else scores


@op("ai.onnx.ml::LinearRegressor")
def _regressor(node: Node) -> Any:
    return transformed(node, _linear(node, node.attr("targets", 1)), node.attr("post_transform", "NONE"))


@op("ai.onnx.ml::LinearClassifier")
def _classifier(node: Node) -> Any:
    labels = labels_of(node, "classlabels_ints", "classlabels_strings")
    if len(node.attr("intercepts", ())) == 1 or len(labels.array) < 2:
        raise Refused("one score for two classes")
    scores = _linear(node, len(labels.array))
    which = node.emit(relax.op.argmax(scores, 1))
    named = node.emit(relax.op.take(node.materialize(labels), which, 0, mode="clip"))
    return named, transformed(node, scores, node.attr("post_transform", "NONE"))


@op("ai.onnx.ml::LabelEncoder")
def _label_encoder(node: Node) -> Any:
    """Keys to values, all else to the default."""
    keys, values, default = _table(node)
    x = node.tensor(0)
    shape = node.shape(0)
    each = reshaped(node, x, [*shape, 1])
    same = node.emit(relax.op.equal(each, constant(keys)))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        nan = node.emit(relax.op.logical_and(node.emit(relax.op.isnan(each)), constant(np.isnan(keys))))
        same = node.emit(relax.op.logical_or(same, nan))
    # The first key that is the same, or the place behind all.
    ordered = node.emit(relax.op.where(same, constant(np.arange(keys.size)), relax.const(keys.size, "int64")))
    place = node.emit(relax.op.min(ordered, [-1]))
    return relax.op.take(constant(np.append(values, default).astype(values.dtype)), place, 0, mode="clip")


def _table(node: Node) -> tuple[Any, Any, Any]:
    """Keys, values and default. Raise Refused for strings."""
    found = []
    for name in ("keys", "values"):
        if node.attr(f"{name}_tensor") is not None:
            found.append(node.attr(f"{name}_tensor").reshape(-1))
        elif node.attr(f"{name}_int64s") is not None:
            found.append(np.array(node.attr(f"{name}_int64s"), "int64"))
        elif node.attr(f"{name}_floats") is not None:
            found.append(np.array(node.attr(f"{name}_floats"), "float32"))
        else:
            raise Refused(f"{name} that are strings")
    keys, values = found
    if keys.dtype.kind not in "iuf" or values.dtype.kind not in "iuf":
        raise Refused("keys or values that are strings")
    plain = node.attr("default_int64", -1) if values.dtype.kind == "i" else node.attr("default_float", -0.0)
    tensor = node.attr("default_tensor")
    return keys, values, plain if tensor is None else tensor.reshape(-1)[0]
