"""The same model with rounded weights in its products."""

from __future__ import annotations

from typing import Any

from relaxc.service.frontend.onnx.moved import graphs
from relaxc.service.rounding import Rounding

__all__ = ["round_weights"]

_LOOKUPS = frozenset({"Gather", "GatherND", "GatherElements"})
"""Operators that read rows of a tensor as they are: an embedding that is the last product's weights too."""


def round_weights(model: Any, rounding: Rounding) -> None:
    """Have products read what `rounding` made of the model's tensors, all of which it holds itself."""
    from onnx import numpy_helper

    inner = list(graphs(model.graph))
    for graph in inner:
        made: dict[str, str] = {}
        for tensor in list(graph.initializer):
            array = rounding.apply(numpy_helper.to_array(tensor))
            if array is not None:
                made[tensor.name] = f"{tensor.name}_relaxc_rounded"
                graph.initializer.append(numpy_helper.from_array(array, made[tensor.name]))
        for reader in inner if made else ():
            _reread(reader, made)
        _drop_unread(graph, inner, made)
    for graph in inner:
        for node in graph.node:
            for attribute in node.attribute if node.op_type == "Constant" else ():
                array = rounding.apply(numpy_helper.to_array(attribute.t)) if attribute.name == "value" else None
                if array is not None:
                    attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))


def _reread(graph: Any, made: dict[str, str]) -> None:
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in made and node.op_type not in _LOOKUPS:
                node.input[place] = made[name]


def _drop_unread(graph: Any, inner: list[Any], made: dict[str, str]) -> None:
    """Without what nothing reads any more: a model has no more than 2 GB."""
    read = {name for each in inner for node in each.node for name in node.input}
    read |= {value.name for each in inner for value in each.output}
    kept = [tensor for tensor in graph.initializer if tensor.name not in made or tensor.name in read]
    if len(kept) < len(graph.initializer):
        copies = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
        del graph.initializer[:]
        graph.initializer.extend(copies)
