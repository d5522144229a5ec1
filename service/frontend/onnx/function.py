"""The bodies of functions, a model's own and those that the ONNX specification gives for operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relaxc.service.frontend.onnx.file import bodies

__all__ = ["Body", "body_of", "has_body", "inlined", "with_types"]


@dataclass(frozen=True)
class Body:
    """The nodes that compute an operator, the names its inputs and outputs have in them, and the body's own opsets."""

    nodes: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: dict[str, int]


def has_body(op_type: str, domain: str, opset: int) -> bool:
    """Return whether the specification defines the operator by others."""
    schema = _schema(op_type, domain, opset)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def body_of(node: Any, opset: int, input_types: list[Any]) -> Body | None:
    """Return the body of a NodeProto for inputs of these TypeProtos; None when there is none for them."""
    import onnx

    schema = _schema(node.op_type, node.domain, opset)
    if schema is None:
        return None
    if schema.has_context_dependent_function:
        version = _version(schema.context_dependent_function_opset_versions, opset)
        types = [t.SerializeToString() for t in input_types]
        data = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
    elif schema.has_function:
        data = schema.get_function_with_opset_version(_version(schema.function_opset_versions, opset))
    else:
        return None
    if not data:
        return None
    function = onnx.FunctionProto.FromString(data)
    opsets = {("" if e.domain == "ai.onnx" else e.domain): e.version for e in function.opset_import}
    return Body(_bound(function, node, schema), tuple(function.input), tuple(function.output), opsets)


def _schema(op_type: str, domain: str, opset: int) -> Any | None:
    import onnx

    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def _version(versions: list[int], opset: int) -> int:
    return max((version for version in versions if version <= opset), default=min(versions))


def _bound(function: Any, node: Any, schema: Any) -> tuple[Any, ...]:
    """Copies of the body's nodes with references to the operator's attributes replaced by their values."""
    given = {attribute.name: attribute for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type:
            given[name] = attribute.default_value
    for attribute in function.attribute_proto:
        given.setdefault(attribute.name, attribute)
    nodes = []
    for inner in function.node:
        copy = type(inner).FromString(inner.SerializeToString())
        _bind(copy, given)
        nodes.append(copy)
    return tuple(nodes)


def _bind(node: Any, given: dict[str, Any]) -> None:
    kept = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in given:
                continue
            value = type(attribute).FromString(given[attribute.ref_attr_name].SerializeToString())
            value.name = attribute.name
            kept.append(value)
        else:
            for inner in attribute.g.node:
                _bind(inner, given)
            kept.append(type(attribute).FromString(attribute.SerializeToString()))
    del node.attribute[:]
    node.attribute.extend(kept)


def inlined(model: Any) -> Any:
    """Return the model with the bodies of its own functions in place of their calls, itself where it has none.

    Calls get the functions' default attributes first, which ONNX's inliner leaves out. Raise what that does.
    """
    import onnx.inliner

    if not model.functions:
        return model
    defaults = {(each.domain, each.name, each.overload): each.attribute_proto for each in model.functions}
    for body in bodies(model):
        for node in body.node:
            given = {attribute.name for attribute in node.attribute}
            wanted = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend(each for each in wanted if each.name not in given)
    return onnx.inliner.inline_local_functions(model)


def with_types(model: Any) -> Any:
    """Return the model with types of outputs inferred where the file leaves them out."""
    import onnx

    kinds = [value.type.tensor_type for value in model.graph.output]
    if all(kind.elem_type and kind.HasField("shape") for kind in kinds):
        return model
    return onnx.shape_inference.infer_shapes(model)
