"""A graph of dynamo's as an export: its weights are constants, its sizes those of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from relaxc.service.errors import UnsupportedModel
from relaxc.service.frontend.pt2.torch_calls import quiet
from relaxc.service.torch_backend.results import Result, is_computed, results_of

__all__ = ["Captured", "captured"]

_TOLD = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node", "custom")
"""What an export says of where a node comes from: paths and names that another process may have otherwise."""


@dataclass(frozen=True)
class Captured:
    """Which of a graph's arguments are `weights`, `tensors` or sizes of these, and what its results are.

    `sizes` has the place of a size among the arguments → the argument that has it, and the axis. `where` has it of
    each size's symbol.
    """

    graph: torch.fx.GraphModule
    weights: tuple[int, ...]
    tensors: tuple[int, ...]
    sizes: dict[int, tuple[int, int]]
    results: tuple[Result, ...]
    symbolic: dict[int, tuple[int, ...]]
    """Argument → the axes whose sizes may change."""
    where: dict[str, tuple[int, int]]

    def export(self, arguments: Sequence[Any], path: Path) -> None:
        """Write the graph with these arguments as `.pt2`: equal graphs and weights give equal bytes.

        Raise UnsupportedModel where the graph changes what it is given, or what its export raises.
        """
        given = tuple(arguments[place].detach() for place in self.tensors)
        dims = tuple(
            dict.fromkeys(self.symbolic.get(place, ()), torch.export.Dim.AUTO) or None for place in self.tensors
        )
        module = _Folded(self, arguments)
        with torch.no_grad(), quiet():
            program = torch.export.export(module, given, dynamic_shapes=(dims,), strict=False)
            if _is_traced_anew(program):
                program = program.run_decompositions({})
        if changed := sum("MUTATION" in spec.kind.name for spec in program.graph_signature.output_specs):
            raise UnsupportedModel(f"the graph changes {changed} of the tensors that it is given or holds")
        for node in program.graph.nodes:
            for name in _TOLD:
                node.meta.pop(name, None)
        program.example_inputs = None  # the file would have them
        with quiet():
            torch.export.save(program, path)


def _is_traced_anew(program: Any) -> bool:
    """Whether to make its operators functional: one writes into a tensor, of which the export does not say whose it is,
    or an autocast gives others dtypes that they do not have in the export.
    """
    graphs = [module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = [node.target for graph in graphs for node in graph.graph.nodes]
    mutable = any(getattr(target, "_schema", None) is not None and target._schema.is_mutable for target in targets)
    return mutable or any("autocast" in str(target) for target in targets)


def captured(graph: torch.fx.GraphModule) -> Captured:
    """Return what a graph takes and gives. Raise UnsupportedModel for arguments that are neither tensors nor sizes."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("example_value") for node in placeholders]
    weights, tensors, sizes, symbolic = [], [], {}, {}
    where: dict[str, tuple[int, int]] = {}
    for place, (node, value) in enumerate(zip(placeholders, values, strict=True)):
        if not isinstance(value, torch.Tensor):
            continue
        if "_dynamo_static_input_type" in node.meta.get("tensor_dict", {}):
            weights.append(place)
            continue
        if value.device.type != "cpu" or value.layout is not torch.strided:
            raise UnsupportedModel(f"an argument is on {value.device}, with the layout {value.layout}")
        tensors.append(place)
        axes = [axis for axis, size in enumerate(value.shape) if isinstance(size, torch.SymInt)]
        symbolic[place] = tuple(axes)
        for axis in axes:
            where.setdefault(str(value.shape[axis]), (place, axis))
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            continue
        if not isinstance(value, torch.SymInt) or str(value) not in where:
            raise UnsupportedModel(f"an argument is a {type(value).__name__}, and no tensor's size")
        sizes[place] = where[str(value)]
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    results = results_of(placeholders, output.args[0])
    return Captured(graph, tuple(weights), tuple(tensors), sizes, results, symbolic, where)


class _Folded(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """The graph as a module that has the weights, of its tensors."""

    def __init__(self, found: Captured, arguments: Sequence[Any]) -> None:
        super().__init__()
        self.graph_module, self.found = found.graph, found
        for place in found.weights:
            self.register_buffer(f"weight_{place}", arguments[place].detach())

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        found = self.found
        given: dict[int, Any] = dict(zip(found.tensors, tensors, strict=True))
        given |= {place: getattr(self, f"weight_{place}") for place in found.weights}
        given |= {place: given[source].shape[axis] for place, (source, axis) in found.sizes.items()}
        results = self.graph_module(*(given[place] for place in sorted(given)))
        return tuple(value for value, kind in zip(results, found.results, strict=True) if is_computed(kind))
