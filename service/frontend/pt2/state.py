"""What an exported program keeps from one call to the next: the buffers that it changes."""

from __future__ import annotations

from typing import Any

from relaxc.service.errors import UnsupportedModel
from relaxc.service.frontend.model import NODES_NAMED

__all__ = ["buffers_for_constants", "check_mutations", "mutable_buffers", "state_of"]

_MUTATION = "MUTATION"


def buffers_for_constants(exported: Any) -> Any:
    """Return the program with buffers for the constants that it changes, as torch decomposes no program that has any:
    the buffer that is the same tensor, where there is one, else one of the constant's own name.

    An export that is not strict lifts what is held in a list or an object, as the tensors of a static cache are.
    """
    changed = mutable_buffers(exported)
    stored = {**exported.state_dict, **exported.constants}
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    specs = exported.graph_signature.input_specs
    buffers = {
        _place(stored[spec.target]): nodes[spec.arg.name]
        for spec in specs
        if spec.kind.name == "BUFFER" and stored[spec.target].numel()
    }
    for spec in list(specs):
        if spec.kind.name != "CONSTANT_TENSOR" or spec.target not in changed:
            continue
        if (buffer := buffers.get(_place(stored[spec.target]))) is None:
            spec.kind, spec.persistent = type(spec.kind).BUFFER, False
            continue
        node = nodes[spec.arg.name]
        node.replace_all_uses_with(buffer)
        exported.graph.erase_node(node)
        specs.remove(spec)
    exported.graph_module.recompile()
    return exported


def _place(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def check_mutations(program: Any) -> None:
    """Raise UnsupportedModel for a program that changes inputs or parameters, or that is exported for training."""
    changed = [spec for spec in program.graph_signature.output_specs if _MUTATION in spec.kind.name]
    others = [spec for spec in changed if spec.kind.name != "BUFFER_MUTATION"]
    training = changed and any("batch_norm" in str(node.target) for node in _makers(program))
    if others or training:
        names = sorted({str(spec.target) for spec in (others or changed)})
        raise UnsupportedModel(
            f"the program changes {len(names)} of its {'inputs or parameters' if others else 'statistics'} when it "
            f"runs, {names[0]} among them; an artifact keeps buffers alone",
            remedy="Call model.eval() before the export, and return what should be kept.",
            names=names[:NODES_NAMED],
        )


def _makers(program: Any) -> list[Any]:
    """What computes the new values of buffers; of an item what computes the whole."""
    made = state_of(program).values()
    return [node.args[0] if str(node.target) == "<built-in function getitem>" else node for node in made if node.args]


def state_of(program: Any) -> dict[str, Any]:
    """Return buffer → the node that is its next value, in the order of the program's inputs."""
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    specs = program.graph_signature.output_specs
    changed = {
        spec.target: node
        for spec, node in zip(specs, output.args[0], strict=True)
        if spec.kind.name == "BUFFER_MUTATION"
    }
    order = [spec.target for spec in program.graph_signature.input_specs if spec.target in changed]
    return {name: changed[name] for name in order}


def mutable_buffers(exported: Any) -> set[str]:
    """Return the buffers and constants that a program as it was exported may change, in place or by its results."""
    specs = exported.graph_signature.input_specs
    kinds = ("BUFFER", "CONSTANT_TENSOR")
    buffers = {spec.arg.name: spec.target for spec in specs if spec.kind.name in kinds}
    found = {spec.target for spec in exported.graph_signature.output_specs if spec.kind.name == "BUFFER_MUTATION"}
    lies_in: dict[Any, set[str]] = {}
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name in buffers:
            lies_in[node] = {buffers[node.name]}
        elif (schema := getattr(node.target, "_schema", None)) is not None:
            given = [*zip(schema.arguments, node.args, strict=False)]
            given += [(each, node.kwargs[each.name]) for each in schema.arguments if each.name in node.kwargs]
            shared = [(each, lies_in.get(value, set())) for each, value in given if each.alias_info is not None]
            found |= {name for each, names in shared if each.alias_info.is_write for name in names}
            lies_in[node] = {name for _, names in shared for name in names}
        elif node.op == "call_function":  # an item of a result
            lies_in[node] = set().union(*(lies_in.get(each, set()) for each in node.all_input_nodes))
    return found
