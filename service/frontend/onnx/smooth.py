"""Scales migrate from activations to weights, a channel at a time, before both are quantized.

SmoothQuant (Xiao et al., 2023): of `X W`, a channel of X that is much larger than the others takes all the codes of a
tensor's one scale. `(X / s) (s W)` is the same, and with `s_j = max|X_j|^a / max|W_j|^(1 - a)` both are as hard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relaxc.service.frontend.onnx.moved import graphs

__all__ = ["smooth"]

Array = np.ndarray[Any, Any]
Maxima = Callable[[Sequence[str]], Mapping[str, Array]]
"""Names of tensors → the largest magnitude of each channel, the last axis, over all samples."""

_ALPHA = 0.5
_LEAST, _MOST = 1e-3, 1e3


def smooth(model: Any, maxima: Maxima) -> int:
    """Divide what layer norms give to products by a scale a channel, and multiply the products' weights; return how
    many norms were.

    Where products alone read the norm, its own scale and bias are divided; else there is a multiplication before them.
    The model holds its data itself and is changed in place.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    seen = _seen_elsewhere(model.graph)
    own = {name: tensor for name, tensor in weights.items() if name not in seen}
    found = {}
    for norm in model.graph.node:
        products = [each for each in readers.get(norm.output[0], []) if _multiplies(each, norm.output[0], own, readers)]
        if norm.op_type == "LayerNormalization" and products:
            found[norm.output[0]] = norm, products
    largest = maxima(list(found)) if found else {}
    for name, (norm, products) in found.items():
        scales = _scales(largest[name], [_rows(node, weights) for node in products])
        for node in products:
            _replace(weights[node.input[1]], _by_rows(node, weights, scales))
        alone = len(products) == len(readers[name]) and name not in seen
        parameters = [each for each in norm.input[1:] if each]
        if alone and all(each in own and len(readers[each]) == 1 for each in parameters):
            for each in parameters:
                _replace(weights[each], _array(weights[each]) / scales)
        else:
            _divide(model, name, products, scales)
    return len(found)


def _seen_elsewhere(graph: Any) -> set[str]:
    """What is an output of the model, or is read within the branch of an If or the body of a loop."""
    inner = list(graphs(graph))[1:]
    read = {name for each in inner for node in each.node for name in node.input}
    return read | {value.name for each in (graph, *inner) for value in each.output}


def _multiplies(node: Any, name: str, weights: Mapping[str, Any], readers: Mapping[str, list[Any]]) -> bool:
    """Whether a node is a product of `name` by a matrix of its own."""
    if node.op_type not in ("MatMul", "Gemm") or node.input[0] != name or node.input[1] not in weights:
        return False
    right = weights[node.input[1]]
    plain = all(not (each.name == "transA" and each.i) for each in node.attribute)
    return plain and len(right.dims) == 2 and len(readers[node.input[1]]) == 1 and list(node.input).count(name) == 1


def _turned(node: Any) -> bool:
    return any(each.name == "transB" and each.i for each in node.attribute)


def _rows(node: Any, weights: Mapping[str, Any]) -> Array:
    """The weights of a product, a row for each channel of what it multiplies them with."""
    array = _array(weights[node.input[1]])
    return array.T if _turned(node) else array


def _by_rows(node: Any, weights: Mapping[str, Any], scales: Array) -> Array:
    rows = _rows(node, weights) * scales[:, None]
    return rows.T if _turned(node) else rows


def _scales(largest: Array, rows: Sequence[Array]) -> Array:
    of_weights = np.max([np.abs(each).max(axis=1) for each in rows], axis=0)
    usable = (largest > 0) & (of_weights > 0)
    safe = np.where(usable, largest, 1), np.where(usable, of_weights, 1)
    scales = np.clip(safe[0] ** _ALPHA / safe[1] ** (1 - _ALPHA), _LEAST, _MOST)
    middle = np.exp(np.mean(np.log(scales[usable]))) if usable.any() else 1.0
    return np.where(usable, scales / middle, 1.0).astype(np.float32)


def _array(tensor: Any) -> Array:
    from onnx import numpy_helper

    found: Array = numpy_helper.to_array(tensor)
    return found


def _replace(tensor: Any, array: Array) -> None:
    from onnx import numpy_helper

    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array, np.float32), tensor.name))


def _divide(model: Any, name: str, products: Sequence[Any], scales: Array) -> None:
    from onnx import helper, numpy_helper

    made = f"{name}_relaxc_smoothed"
    model.graph.initializer.append(numpy_helper.from_array(1 / scales, f"{made}_by"))
    place = next(index for index, node in enumerate(model.graph.node) if name in node.output)
    model.graph.node.insert(place + 1, helper.make_node("Mul", [name, f"{made}_by"], [made], name=made))
    for node in products:
        node.input[0] = made
