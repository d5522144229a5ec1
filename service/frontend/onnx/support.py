"""Which nodes of a graph can be imported, decided for all of them before anything is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from relaxc.service.errors import UnsupportedModel
from relaxc.service.frontend.model import NODES_NAMED, Unsupported
from relaxc.service.frontend.onnx.file import subgraphs
from relaxc.service.frontend.onnx.fold import FOLDS
from relaxc.service.frontend.onnx.function import has_body
from relaxc.service.frontend.onnx.graph import Graph, op_name

__all__ = ["DIRECT", "is_supported", "unsupported", "unsupported_error", "with_option"]

DIRECT = frozenset({"Shape", "Size", "If", "Loop", "Scan"})
"""Operators that the walk itself handles."""

RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_KNOWN_DOMAINS = ("", "com.microsoft", "ai.onnx.ml")


def unsupported(graph: Graph) -> dict[str, Unsupported]:
    """Return the operators that have no converter, with the names of their nodes, subgraphs included, most frequent
    first.
    """
    found: dict[str, list[Any]] = {}
    for node in _all_nodes(graph.nodes):
        if not is_supported(node, graph.opsets):
            found.setdefault(op_name(node), []).append(node)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return {
        op: Unsupported(len(nodes), tuple(_label(node) for node in nodes[:NODES_NAMED]), _reason(nodes[0]))
        for op, nodes in ordered
    }


def unsupported_error(ops: Mapping[str, Unsupported]) -> UnsupportedModel:
    """Return the error that lists all unsupported nodes at once."""
    shown = ", ".join(f"{op} ({nodes.count}: {nodes.reason})" for op, nodes in list(ops.items())[:5])
    more = f" and {len(ops) - 5} more" if len(ops) > 5 else ""
    return UnsupportedModel(
        f"the model has operators that cannot be imported: {shown}{more}",
        ops={op: nodes.to_dict() for op, nodes in ops.items()},
    )


def with_option(reason: str) -> str:
    """Return a reason with the option that helps, where one may."""
    if "`--" in reason:
        return reason
    if "symbolic" in reason:
        return f"{reason} (`--shape` fixes it)"
    if "computed from the inputs' values" in reason:
        return f"{reason} (`--value` fixes an input of one integer)"
    return reason


def is_supported(node: Any, opsets: dict[str, int]) -> bool:
    """Return whether some converter takes this operator; it may still refuse the node for its attributes or inputs."""
    from relaxc.service.frontend.onnx.ops import converter_of

    name = op_name(node)
    if name in RANDOM:
        return False
    if name in DIRECT or name in FOLDS or converter_of(name) is not None:
        return True
    return not node.domain and has_body(node.op_type, node.domain, opsets[""])


def _all_nodes(nodes: Any) -> Iterable[Any]:
    yield from nodes
    for graph in subgraphs(nodes):
        yield from graph.node


def _label(node: Any) -> str:
    return str(node.name or (node.output[0] if node.output else node.op_type))


def _reason(node: Any) -> str:
    if node.domain not in _KNOWN_DOMAINS:
        return f"the domain {node.domain!r} is unknown"
    return "its result is random" if node.op_type in RANDOM else "there is no converter for this operator"
