"""The names of a graph: each defined once and before its use, in subgraphs too."""

from __future__ import annotations

import graphlib
from typing import Any

from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.onnx.file import subgraphs

__all__ = ["copy", "order_graph", "replace"]


def order_graph(graph: Any, outer: set[str]) -> None:
    """Check that each name is defined, once, and without a cycle, here and in subgraphs; sort nodes if they are not.

    Raise ModelMalformed.
    """
    given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    maker: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name and (name in maker or name in given):
                raise ModelMalformed(
                    f"the name {name!r} is defined twice, the second time by {_label(node)}", name=name
                )
            maker[name] = index
    maker.pop("", None)
    known = outer | given | maker.keys()
    needs: list[set[int]] = []
    for node in graph.node:
        for subgraph in [a.g for a in node.attribute if a.HasField("g")] + [
            g for a in node.attribute for g in a.graphs
        ]:
            order_graph(subgraph, known)
        used = _used_names(node)
        missing = sorted(name for name in node.input if name and name not in known)
        if missing:
            raise ModelMalformed(
                f"{_label(node)} reads {missing[0]!r}, which is no input, weight or output of a node", name=missing[0]
            )
        needs.append({maker[name] for name in used if name in maker})
    for value in graph.output:
        if value.name not in known:
            raise ModelMalformed(f"the graph's output {value.name!r} is not computed by any node", name=value.name)
    if any(max(before, default=-1) >= index for index, before in enumerate(needs)):
        _sort(graph, needs)


def _used_names(node: Any) -> set[str]:
    """Names that a node reads, those that its subgraphs read from outside included."""
    names = set(node.input)
    for graph in subgraphs([node]):
        for inner in graph.node:
            names.update(inner.input)
        names.update(value.name for value in graph.output)
    return names


def _sort(graph: Any, needs: list[set[int]]) -> None:
    try:
        order = list(graphlib.TopologicalSorter(dict(enumerate(needs))).static_order())
    except graphlib.CycleError as error:
        cycle = [_label(graph.node[index]) for index in error.args[1][:8]]
        raise ModelMalformed(f"the graph has a cycle: {' → '.join(cycle)}", nodes=cycle) from error
    replace(graph.node, [copy(graph.node[index]) for index in order])


def _label(node: Any) -> str:
    return f"node {node.name!r} ({node.op_type})" if node.name else f"a {node.op_type} node"


def copy(message: Any) -> Any:
    """Return a protobuf message of its own, which `CopyFrom` within one tree does not give."""
    return type(message).FromString(message.SerializeToString())


def replace(field: Any, messages: list[Any]) -> None:
    """Put messages in place of those of a repeated field."""
    del field[:]
    field.extend(messages)
