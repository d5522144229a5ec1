"""A model with wider floats: a bfloat16 one as a float32 one, for tools that know bfloat16 only in part.

Exporters write bfloat16 into operators of opsets that do not have it yet (Conv before 22), and ONNX Runtime has few CPU
kernels for it. With every bfloat16 replaced by float32, the model has the same meaning and more digits.
"""

from __future__ import annotations

from typing import Any

from relaxc.service.frontend.onnx.file import subgraphs, tensors

__all__ = ["BFLOAT16", "DOUBLE", "FLOAT32", "uses_bfloat16", "widened"]

BFLOAT16, FLOAT32, DOUBLE = 16, 1, 11  # onnx.TensorProto.BFLOAT16, FLOAT, DOUBLE
# The attributes that name a dtype: of Cast, EyeLike, QuantizeLinear, the normalizations and Attention.
_DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "stash_type", "softmax_precision")

_CONSTANTS = ("value_float", "value_floats")


def _graphs(model: Any) -> list[Any]:
    return [model.graph, *subgraphs(model.graph.node)]


def uses_bfloat16(model: Any) -> bool:
    """Return whether an input, output or tensor of the model is bfloat16."""
    values = [value for graph in _graphs(model) for value in (*graph.input, *graph.output)]
    kinds = [value.type.tensor_type.elem_type for value in values] + [t.data_type for t in tensors(model)]
    return BFLOAT16 in kinds


def widened(model: Any, short: int = BFLOAT16, wide: int = FLOAT32) -> Any:
    """Return the model itself, every `short` in it made `wide`: what is declared, held, named, or made by a node."""
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(wide)
    for graph in _graphs(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == short:
                value.type.tensor_type.elem_type = wide
    for tensor in tensors(model):
        if tensor.data_type == short:
            data = onnx.numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(data, tensor.name))
    for body in (*_graphs(model), *model.functions):
        for node in body.node:
            for attribute in node.attribute:
                if attribute.name in _DTYPE_ATTRIBUTES and attribute.i == short:
                    attribute.i = wide
                elif (
                    short == FLOAT32
                    and node.op_type == "Constant"
                    and attribute.name in ("value_float", "value_floats")
                ):
                    _as_tensor(attribute, dtype)
    return model


def _as_tensor(attribute: Any, dtype: Any) -> None:
    """Make a Constant's floats a tensor of this dtype."""
    import numpy as np
    import onnx

    held = np.array(onnx.helper.get_attribute_value(attribute), dtype)
    attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(held)))
