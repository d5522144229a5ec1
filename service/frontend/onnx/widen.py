"""A bfloat16 model as a float32 one, for tools that know bfloat16 only in part.

Exporters write bfloat16 into operators of opsets that do not have it yet (Conv before 22), and ONNX Runtime has few CPU
kernels for it. With every bfloat16 replaced by float32, the model has the same meaning and more digits.
"""

from __future__ import annotations

from typing import Any

from service.frontend.onnx.file import subgraphs, tensors

__all__ = ["uses_bfloat16", "widened"]

BFLOAT16, FLOAT32 = 16, 1  # onnx.TensorProto.BFLOAT16, FLOAT
# The attributes that name a dtype: of Cast, EyeLike, QuantizeLinear, the normalizations and Attention.
_DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "stash_type", "softmax_precision")


def _graphs(model: Any) -> list[Any]:
    return [model.graph, *subgraphs(model.graph.node)]


def uses_bfloat16(model: Any) -> bool:
    """Return whether an input, output or tensor of the model is bfloat16."""
    values = [value for graph in _graphs(model) for value in (*graph.input, *graph.output)]
    kinds = [value.type.tensor_type.elem_type for value in values] + [t.data_type for t in tensors(model)]
    return BFLOAT16 in kinds


def widened(model: Any) -> Any:
    """Return the model itself, every bfloat16 in it made float32."""
    import onnx

    for graph in _graphs(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == BFLOAT16:
                value.type.tensor_type.elem_type = FLOAT32
    for tensor in tensors(model):
        if tensor.data_type == BFLOAT16:
            data = onnx.numpy_helper.to_array(tensor).astype("float32")
            tensor.CopyFrom(onnx.numpy_helper.from_array(data, tensor.name))
    for body in (*_graphs(model), *model.functions):
        for node in body.node:
            for attribute in node.attribute:
                if attribute.name in _DTYPE_ATTRIBUTES and attribute.i == BFLOAT16:
                    attribute.i = FLOAT32
    return model
