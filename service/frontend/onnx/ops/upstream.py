"""Operators that go to TVM's own importer: those of its converters that gave no wrong value in the ONNX node suite."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend.onnx import onnx_frontend

from relaxc.service.frontend.onnx.file import one_line
from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.bounded import BOUNDED
from relaxc.service.frontend.onnx.ops.common import cast
from relaxc.service.frontend.onnx.ops.registry import op

_TRUSTED = ("GridSample", "MaxRoiPool", "MaxUnpool", "RoiAlign", "Unique")


@op(*_TRUSTED)
def _upstream(node: Node) -> Any:
    """Runs TVM's converter for this opset. It reports what it does not take by any exception, so all are refusals."""
    import onnx

    if node.op == "RoiAlign" and node.attr("mode", "avg") != "avg":
        raise Refused("mode=max, which TVM computes otherwise")
    converter = onnx_frontend._get_convert_map()[node.op].get_converter(node.opset)
    tensors = [None if v is None else node.materialize(v) for v in node.inputs]
    inputs = onnx_frontend.onnx_input(BOUNDED[node.op](node, tensors) if node.op in BOUNDED else tensors)
    attributes: dict[str, Any] = {
        name: value.encode() if isinstance(value, str) else value for name, value in node.attributes.items()
    }
    for name, value in attributes.items():
        if hasattr(value, "dtype"):
            attributes[name] = onnx.numpy_helper.from_array(value)
    attributes["tvm_custom"] = {"name": node.name, "num_outputs": node.output_count}
    try:
        result = node.builder.normalize(converter(node.builder, inputs, attributes, [{}, {}]))
    except Exception as error:
        raise Refused(f"TVM's converter: {one_line(error)}") from error
    return cast(node.emit(result), node.dtype(0)) if node.op in BOUNDED else _parts(node, result)


def _parts(node: Node, result: Any) -> Any:
    from tvm import relax

    if isinstance(result, relax.Tuple):
        return list(result.fields)
    if isinstance(result.ty, relax.TupleType):
        bound = node.emit(result)
        return [relax.TupleGetItem(bound, index) for index in range(len(result.ty.fields))]
    return result
