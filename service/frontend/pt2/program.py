"""A `.pt2` as torch's ExportedProgram, read without running anything that the file carries."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxc.service.errors import ModelMalformed, UnsupportedModel
from relaxc.service.frontend.model import Unsupported
from relaxc.service.frontend.pt2 import schema as pt2_schema
from relaxc.service.frontend.pt2.archive import Archive
from relaxc.service.frontend.pt2.check import check_program
from relaxc.service.frontend.pt2.graph import QUANTIZED, unknown_targets
from relaxc.service.frontend.pt2.signature import Interface, interface
from relaxc.service.frontend.pt2.state import buffers_for_constants
from relaxc.service.frontend.pt2.torch_calls import TORCH_ERRORS, quiet
from relaxc.service.frontend.pt2.tree import input_names, output_names
from relaxc.service.frontend.pt2.weights import load_constants, load_weights
from relaxc.service.signature import JsonScalar

__all__ = ["Document", "Program", "deserialize", "parse"]

_MODELS = "models/"
_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}

# Kind of input → the field with the name under which its tensor is stored.
_WEIGHT_FIELDS = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}


@dataclass(frozen=True)
class Document:
    """A checked archive: its JSON as schema.ExportedProgram, made safe, and what it says of the program.

    The call in it takes the leaves of the inputs as positional arguments and returns a tuple of the leaves of the
    outputs. `unknown` are the operators that we have no way to compile; where it is empty, or `traceable` is true,
    the document may be deserialized.
    """

    archive: Archive
    model: str
    schema: Any
    interface: Interface
    op_counts: dict[str, int]
    unknown: dict[str, Unsupported]
    traceable: bool
    details: dict[str, JsonScalar]


@dataclass(frozen=True)
class Program:
    """A torch.export.ExportedProgram, its weights views of the mapped archive."""

    exported: Any


def parse(path: Path, *, writable: bool = False) -> Document:
    """Return the one program in the archive at `path`, checked; its weights are not read. Raise a ModelError.

    `writable` is for running the program: it may write to its weights, in memory.
    """
    archive = Archive(path, writable=writable)
    model = _model_name(archive)
    with quiet():
        return _parse(archive, model)


def _parse(archive: Archive, model: str) -> Document:
    from torch._export.serde import schema

    entry = f"{_MODELS}{model}.json"
    program = pt2_schema.parse(schema.ExportedProgram, archive.json(entry), entry)
    guards = list(program.guards_code or ())
    check_program(program)
    graph = program.graph_module.graph
    inputs, outputs = _flatten(program.graph_module)
    details: dict[str, JsonScalar] = {
        "torch_version": program.torch_version[:40],
        "nodes": len(graph.nodes),
        "weights_bytes": sum(archive.size(name) for name in archive.names("data/weights/weight_")),
    }
    return Document(
        archive,
        model,
        program,
        interface(program, inputs, outputs, guards),
        dict(Counter(node.target.removeprefix("torch.ops.") for node in graph.nodes).most_common()),
        *unknown_targets(graph),
        details,
    )


def deserialize(document: Document) -> Program:
    """Return the program with its weights. Raise ModelMalformed where the JSON contradicts itself or the weights."""
    from torch._export.serde.serialize import ExportedProgramDeserializer

    if any(name.startswith(f"{QUANTIZED}.") for name in document.op_counts):
        import torch.ao.quantization.fx._decomposed  # noqa: F401  # registers the operators
    archive, model = document.archive, document.model
    state, constants = load_weights(archive, model), load_constants(archive, model)
    _check_weights(document.schema.graph_module, {**constants, **state})
    try:
        with quiet():
            exported = ExportedProgramDeserializer().deserialize(document.schema, state, constants)
            return Program(buffers_for_constants(exported))
    except TORCH_ERRORS as error:
        raise ModelMalformed(f"{archive.path.name} contradicts itself: {_reason(error)}") from error


def _check_weights(module: Any, stored: dict[str, Any]) -> None:
    """Every weight that the graph takes is there, with the dtype and shape that the graph gives it."""
    from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

    for spec in module.signature.input_specs:
        kind = str(spec.type)
        if kind not in _WEIGHT_FIELDS:
            continue
        name, argument = getattr(spec.value, _WEIGHT_FIELDS[kind]), spec.value.arg.name
        tensor, meta = stored.get(name), module.graph.tensor_values.get(argument)
        if tensor is None or meta is None:
            raise ModelMalformed(f"the weight {name} is not in the archive, or not in the graph", name=name)
        sizes = [dim.as_int if str(dim.type) == "as_int" else None for dim in meta.sizes]
        if _SERIALIZE_TO_TORCH_DTYPE.get(meta.dtype) != tensor.dtype or sizes != list(tensor.shape):
            raise ModelMalformed(
                f"the weight {name} is {tensor.dtype}{list(tensor.shape)}, the graph takes {meta.dtype.name}{sizes}",
                name=name,
            )


def _model_name(archive: Archive) -> str:
    names = [name for name in archive.names(_MODELS) if name.endswith(".json")]
    if len(names) == 1:
        return names[0].removeprefix(_MODELS).removesuffix(".json")
    if names:
        raise UnsupportedModel(f"{archive.path.name} holds {len(names)} programs; one is compiled", models=names)
    if archive.names("data/aotinductor/"):
        raise UnsupportedModel(
            f"{archive.path.name} holds machine code that AOTInductor built, and no program",
            remedy="Send the file that torch.export.save writes.",
        )
    raise ModelMalformed(f"{archive.path.name} holds no program: there is no models/*.json")


def _flatten(graph_module: Any) -> tuple[list[str], list[str]]:
    """Names of the leaves; and in place, a calling convention without containers and without nested modules.

    torch would look classes up by name and import what an enum in a tree spec names.
    """
    entries = [entry for entry in graph_module.module_call_graph if entry.fqn == "" and entry.signature is not None]
    if not entries:
        raise ModelMalformed("the program does not say how it is called: module_call_graph has no entry for the root")
    entry = entries[0]
    fields = {kind: list(found.field_names) for kind, found in graph_module.treespec_namedtuple_fields.items()}
    inputs = input_names(entry.signature.in_spec, entry.signature.forward_arg_names)
    outputs = output_names(entry.signature.out_spec, fields)
    specs = graph_module.signature
    taken = [spec for spec in specs.input_specs if str(spec.type) in ("user_input", "constant_input")]
    given = [spec for spec in specs.output_specs if str(spec.type) in ("user_output", "loss_output")]
    if len(taken) != len(inputs) or len(given) != len(outputs):
        raise ModelMalformed(
            f"the program's signature has {len(taken)} inputs and {len(given)} outputs, its tree specs "
            f"{len(inputs)} and {len(outputs)}"
        )
    signature = entry.signature
    signature.in_spec = _spec("builtins.tuple", [_tuple(len(inputs)), _dict()])
    signature.out_spec = _spec("builtins.tuple", _tuple(len(outputs))["children_spec"])
    signature.forward_arg_names, signature.inputs, signature.outputs = None, [], []
    graph_module.module_call_graph[:] = [entry]
    graph_module.treespec_namedtuple_fields.clear()
    return inputs, outputs


def _tuple(leaves: int) -> dict[str, Any]:
    return {"type": "builtins.tuple", "context": "null", "children_spec": [_LEAF] * leaves}


def _dict() -> dict[str, Any]:
    return {"type": "builtins.dict", "context": "[]", "children_spec": []}


def _spec(kind: str, children: list[dict[str, Any]]) -> str:
    return json.dumps([1, {"type": kind, "context": "null", "children_spec": children}])


def _reason(error: BaseException) -> str:
    """The last line of torch's error: it wraps the trace of the first one into its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
