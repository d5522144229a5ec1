"""An ONNX graph made safe to walk: bounded, each name defined once, in order, functions inlined, weights apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaxc.service.config import settings
from relaxc.service.errors import ModelMalformed, ModelTooLarge, UnsupportedModel
from relaxc.service.frontend.onnx.file import array, bodies, check_tensors, mapped, one_line, subgraphs, tensors
from relaxc.service.frontend.onnx.function import inlined
from relaxc.service.frontend.onnx.order import copy, order_graph, replace
from relaxc.service.frontend.onnx.outside import Outside
from relaxc.service.frontend.onnx.widen import widened

__all__ = ["Graph", "check", "read"]

# Larger tensors leave the protobuf, so that checker, inliner and shape inference see a graph of kilobytes.
_INLINE_BYTES = 1024
_OLDEST_IR_VERSION = 3
_ONNX_DOMAIN = "ai.onnx"
_OTHERS_DOMAIN = "relaxc.unchecked"
# Before opset 7 operators broadcast by an attribute of their own.
_OLDEST_OPSET = 7


@dataclass
class Graph:
    """A checked model. `model` is the protobuf without large weights; `weights` are these, as arrays by name.

    In `model` a weight that was taken out is a graph input; `inputs` names the real ones.
    """

    model: Any
    weights: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: dict[str, int]
    op_counts: dict[str, int]
    weight_bytes: int
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def nodes(self) -> Any:
        """The top-level nodes, in an order in which each name is defined before its use."""
        return self.model.graph.node


def read(path: Path) -> Graph:
    """Return the model at `path`, its structure checked; what its nodes mean is left to `check`.

    Raise ModelMalformed, ModelTooLarge, ModelUnsafe, or UnsupportedModel (opset or IR from the future).
    """
    model, outside = mapped(path)
    _name_domain_once(model)
    _leave_open(model.graph)
    _check_versions(model)
    _check_node_count(model)
    weight_bytes = check_tensors(model, path, outside)
    op_counts = _census(model)
    _check_interface(model.graph)
    order_graph(model.graph, set())
    held = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(value.name for value in model.graph.input if value.name not in held)
    weights = _take_weights(model, path.parent, outside)
    opsets = _opsets(model)
    if opsets[""] < _OLDEST_OPSET:
        model = _convert(model, _OLDEST_OPSET)
    if model.functions:
        try:
            model = inlined(model)
        except (RuntimeError, ValueError) as error:
            raise ModelMalformed(f"the model's functions cannot be inlined: {one_line(error)}") from error
        order_graph(model.graph, set())
    details = {
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "ir_version": model.ir_version,
        "opset": opsets[""],
        "nodes": sum(op_counts.values()),
        "weight_bytes": weight_bytes,
    }
    outputs = tuple(dict.fromkeys(value.name for value in model.graph.output))
    return Graph(model, weights, inputs, outputs, _opsets(model), op_counts, weight_bytes, details)


def _name_domain_once(model: Any) -> None:
    """Write `ai.onnx`, which is another name of the domain without one, as that: ONNX's tools know nodes by one."""
    for entry in (*model.opset_import, *(each for body in model.functions for each in body.opset_import)):
        entry.domain = "" if entry.domain == _ONNX_DOMAIN else entry.domain
    for body in bodies(model):
        for node in body.node:
            node.domain = "" if node.domain == _ONNX_DOMAIN else node.domain


def _leave_open(graph: Any) -> None:
    """Take negative dims for what PaddlePaddle means by them: sizes of no name."""
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")


def _opsets(model: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in model.opset_import:
        found[entry.domain] = max(found.get(entry.domain, 0), entry.version)
    if "" not in found:
        import onnx

        plain = any(not node.domain for body in bodies(model) for node in body.node)
        found[""] = 1 if plain else onnx.defs.onnx_opset_version()
    return found


def _check_versions(model: Any) -> None:
    import onnx

    if not _OLDEST_IR_VERSION <= model.ir_version <= onnx.IR_VERSION:
        raise UnsupportedModel(
            f"the file has IR version {model.ir_version}; versions {_OLDEST_IR_VERSION} to {onnx.IR_VERSION} are known",
            ir_version=model.ir_version,
        )
    newest = {
        "": onnx.defs.onnx_opset_version(),
        "ai.onnx.ml": onnx.defs.get_schema("Scaler", "ai.onnx.ml").since_version,
    }
    for domain, version in _opsets(model).items():
        if version > newest[""] and domain == "":
            raise UnsupportedModel(
                f"the model uses opset {version}; the newest known is {newest['']}", opset=version, newest=newest[""]
            )
        if version < 1:
            raise ModelMalformed(f"opset version {version} of domain {domain!r} does not exist")


def _check_node_count(model: Any) -> None:
    """Counts nodes as if every function were inlined: functions that call functions can double at each step."""
    bodies = {(f.domain, f.name, f.overload): f for f in model.functions}
    counts: dict[tuple[str, str, str], int] = {}
    open_: set[tuple[str, str, str]] = set()

    def count(body: Any) -> int:
        total = 0
        for node in _all_nodes(body.node):
            key = (node.domain, node.op_type, node.overload)
            total += 1 + (of_function(key) if key in bodies else 0)
        return total

    def of_function(key: tuple[str, str, str]) -> int:
        if key in open_:
            raise ModelMalformed(f"the function {key[1]!r} of domain {key[0]!r} calls itself", function=key[1])
        if key not in counts:
            open_.add(key)
            counts[key] = count(bodies[key])
            open_.discard(key)
        return counts[key]

    total, limit = count(model.graph), settings().max_graph_nodes
    if total > limit:
        raise ModelTooLarge(f"the graph has {total} nodes; RELAXC_MAX_GRAPH_NODES allows {limit}", nodes=total)


def _all_nodes(nodes: Any) -> Iterator[Any]:
    yield from nodes
    for graph in subgraphs(nodes):
        yield from graph.node


def _census(model: Any) -> dict[str, int]:
    """Nodes of each operator, in subgraphs and function bodies too; a foreign domain is part of the name."""
    counts: dict[str, int] = {}
    for body in [model.graph, *model.functions]:
        for node in _all_nodes(body.node):
            name = op_name(node)
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def op_name(node: Any) -> str:
    """Return `Conv`, or `com.microsoft::FusedMatMul` for an operator of another domain."""
    return f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)


def _check_interface(graph: Any) -> None:
    """Inputs and outputs must be tensors of a known rank with positive or symbolic dims."""
    weights = {tensor.name for tensor in graph.initializer}
    if graph.sparse_initializer:
        raise UnsupportedModel("the model has sparse initializers", tensor=graph.sparse_initializer[0].values.name)
    if not graph.output:
        raise ModelMalformed("the graph has no outputs")
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if not value.name:
                raise ModelMalformed(f"an {kind} of the graph has no name")
            if value.name not in weights or kind == "output":
                _check_value(kind, value)


def _check_value(kind: str, value: Any) -> None:
    what = value.type.WhichOneof("value")
    if what not in ("tensor_type", None) or (what is None and kind == "input"):
        shown = str(what).removesuffix("_type")
        raise UnsupportedModel(f"{kind} {value.name!r} is a {shown}, not a tensor", **{kind: value.name, "kind": shown})
    if kind == "input" and not value.type.tensor_type.HasField("shape"):
        raise UnsupportedModel(f"the rank of input {value.name!r} is unknown", input=value.name)


def _take_weights(model: Any, folder: Path, outside: Outside) -> dict[str, Any]:
    """Moves large and external initializers out of the graph, each leaving a graph input in its place."""
    import onnx

    graph = model.graph
    weights: dict[str, Any] = {}
    kept = []
    for tensor in graph.initializer:
        data = array(tensor, folder, outside)
        if tensor.data_location == 1 or data.nbytes > _INLINE_BYTES:
            weights[tensor.name] = data
        else:
            kept.append(copy(tensor))
    names = {tensor.name for tensor in graph.initializer}
    inputs = [copy(value) for value in graph.input if value.name not in names]
    inputs += [
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in graph.initializer
        if tensor.name in weights
    ]
    replace(graph.initializer, kept)
    replace(graph.input, inputs)
    del graph.value_info[:]
    del model.training_info[:]
    for tensor in tensors(model):
        if tensor.data_location == 1:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array(tensor, folder), tensor.name))
        else:
            outside.put_back(tensor)
    # Before IR version 4 an initializer had to be an input too.
    model.ir_version = max(model.ir_version, 4)
    return weights


def check(graph: Graph) -> None:
    """Ask onnx.checker: attributes, numbers of inputs, dtypes, shapes that agree. Raise ModelMalformed.

    It calls an operator that it does not know malformed, so unsupported ones are looked for first.
    """
    import onnx

    model = widened(copy(graph.model))
    for body in [model.graph, *subgraphs(model.graph.node)]:
        for node in body.node:
            _give_defaults(node, graph.opsets)
    model.opset_import.append(onnx.helper.make_opsetid(_OTHERS_DOMAIN, 1))
    # The checker wants shapes of outputs, which files often leave out, and nobody needs.
    replace(model.graph.output, [copy(v) for v in model.graph.output if v.type.tensor_type.HasField("shape")])
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelMalformed(f"onnx.checker: {one_line(error)}") from error
    except (RuntimeError, ValueError, MemoryError) as error:
        raise ModelMalformed(f"onnx.checker cannot read the model: {one_line(error)}") from error


def _give_defaults(node: Any, opsets: dict[str, int]) -> None:
    """Writes out default attributes of operators that are functions: the checker reads their bodies without them."""
    import onnx

    if node.domain:
        return
    schema = onnx.defs.get_schema(node.op_type, opsets[""]) if onnx.defs.has(node.op_type, opsets[""]) else None
    if schema is None or schema.deprecated:
        # One of ONNX Runtime's own (SimplifiedLayerNormalization), which it writes without a domain, or one that it
        # still runs (GroupNormalization of opset 18).
        node.domain = _OTHERS_DOMAIN
        return
    if schema.has_function:
        given = {attribute.name for attribute in node.attribute}
        defaults = [a.default_value for name, a in schema.attributes.items() if name not in given]
        node.attribute.extend(default for default in defaults if default.type)


def _convert(model: Any, opset: int) -> Any:
    import onnx.version_converter

    try:
        return onnx.version_converter.convert_version(model, opset)
    except Exception as error:  # the C++ converter raises whatever its adapters do
        raise UnsupportedModel(f"opset {_opsets(model)['']} cannot be raised to {opset}: {one_line(error)}") from error
