"""What ONNX Runtime's optimizers fuse (domain com.microsoft), by the operators that it was."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxc.service.frontend.onnx.node import Node, Refused
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.values import Known, known_ints

_FLOAT = 1
"""onnx.TensorProto.FLOAT."""


def _number(node: Node, value: float, dtype: str) -> Known:
    return Known(np.array(value, node.numpy_dtype(dtype)), dtype)


def _size(node: Node, size: Any) -> Known:
    """A size as a number."""
    return known_ints([size], node.scope, shape=())


def _activated(node: Node, y: Any) -> Any:
    """The result of a fused convolution or product, through its activation."""
    name, parameters = node.attr("activation", ""), list(node.attr("activation_params", ()))
    parameters = parameters or [node.attr(f"activation_{each}") for each in ("alpha", "beta", "gamma")]
    given = [each for each in parameters if each is not None]
    if not name:
        return y
    if name == "Clip":
        return node.apply("Clip", y, *(_number(node, each, node.dtype(0)) for each in given))
    if name in ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign", "HardSwish"):
        return node.apply(name, y)
    if name not in ("LeakyRelu", "HardSigmoid", "Elu", "ThresholdedRelu"):
        raise Refused(f"activation={name}")
    return node.apply(name, y, **dict(zip(("alpha", "beta"), given, strict=False)))


@op("com.microsoft::FusedConv")
def _fused_conv(node: Node) -> Any:
    """A convolution, what is added to it, and an activation."""
    inputs, own = [*node.inputs, None, None][:4], ("activation", "activation_params")
    attributes = {name: value for name, value in node.attributes.items() if name not in own}
    y = node.apply("Conv", *inputs[:3], **attributes)
    return _activated(node, y if inputs[3] is None else node.apply("Add", y, inputs[3]))


@op("com.microsoft::FusedGemm")
def _fused_gemm(node: Node) -> Any:
    attributes = {name: value for name, value in node.attributes.items() if not name.startswith("activation")}
    return _activated(node, node.apply("Gemm", *node.inputs, **attributes))


@op("com.microsoft::DynamicQuantizeMatMul")
def _dynamic_quantize_matmul(node: Node) -> Any:
    a, b, scale, zero, bias = [*node.inputs, None, None][:5]
    codes, a_scale, a_zero = node.apply("DynamicQuantizeLinear", a, outputs=3)
    return _integer_product(node, (codes, b), (a_scale, scale), (a_zero, zero), bias)


@op("com.microsoft::MatMulIntegerToFloat")
def _integer_to_float(node: Node) -> Any:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = [*node.inputs, None, None, None][:7]
    return _integer_product(node, (a, b), (a_scale, b_scale), (a_zero, b_zero), bias)


def _integer_product(node: Node, operands: Any, scales: Any, zeros: Any, bias: Any) -> Any:
    total = node.apply("Cast", node.apply("MatMulInteger", *operands, *zeros), to=_FLOAT)
    y = node.apply("Mul", total, node.apply("Mul", *scales))
    return y if bias is None else node.apply("Add", y, bias)


@op("com.microsoft::EmbedLayerNormalization")
def _embed(node: Node) -> Any:
    """The norm of the sum of word, position and segment embeddings; their sum is the third output."""
    if node.attr("mask_index_type", 0) not in (0, 1):
        raise Refused("mask_index_type=2")
    ids, segments, words, places, kinds, gamma, beta, mask, at = [*node.inputs, None, None][:9]
    length = node.shape(0)[1]
    total = node.apply("Gather", words, ids)
    if at is not None:
        total = node.apply("Add", total, node.apply("Gather", places, at))
    else:
        total = node.apply(
            "Add", total, node.apply("Slice", places, node.known([0]), node.known([length]), node.known([0]))
        )
    if segments is not None and kinds is not None:
        total = node.apply("Add", total, node.apply("Gather", kinds, segments))
    y = node.apply("LayerNormalization", total, gamma, beta, axis=-1, epsilon=node.attr("epsilon", 1e-12))
    counted = node.apply("Mul", ids, _number(node, 0, node.dtype(0))) if mask is None else mask
    counts = node.apply("ReduceSum", counted, node.known([1]), keepdims=0)
    return y, counts, total


@op("com.microsoft::Attention")
def _attention(node: Node) -> Any:
    """Q, K and V from one product with `[hidden, 3 · heads · depth]` weights, then attention."""
    x, weights, bias, mask, past, scores = [*node.inputs, *[None] * 6][:6]
    if past is not None or node.has(6) or node.attr("do_rotary", 0):
        raise Refused("past, or do_rotary=1")
    made = node.apply("MatMul", x, weights)
    made = made if bias is None else node.apply("Add", made, bias)
    each = node.shape_of(made)[2] // 3
    sizes = list(node.attr("qkv_hidden_sizes", (each, each, each)))
    q, k, v = node.apply("Split", made, node.known(sizes), outputs=3, axis=2)
    return _attended(node, (q, k, v), node.attr("num_heads"), mask, scores)


@op("com.microsoft::MultiHeadAttention")
def _multi_head_attention(node: Node) -> Any:
    """Attention of `[batch, length, heads · depth]`, with keys and values from before, and those of now behind."""
    q, k, v, bias, mask, scores, past_k, past_v, *others = [*node.inputs, *[None] * 10][:10]
    if k is None or v is None or any(each is not None for each in others) or node.output_count > 3:
        raise Refused("packed operands, or a cache that is shared")
    heads = node.attr("num_heads")
    if bias is not None:
        sizes = [node.shape(0)[2], node.shape(0)[2] if node.rank(1) == 4 else node.shape(1)[2]]
        total = node.shape(3)[0]
        parts = node.apply("Split", bias, node.known([*sizes, total - sum(sizes)]), outputs=3, axis=0)
        q = node.apply("Add", q, parts[0])
        if node.rank(1) == 3:
            k, v = node.apply("Add", k, parts[1]), node.apply("Add", v, parts[2])
    return _attended(node, (q, k, v), heads, mask, scores, (past_k, past_v))


def _attended(
    node: Node, operands: Any, heads: int, mask: Any, scores: Any, past: tuple[Any, Any] = (None, None)
) -> Any:
    """Attention of `[batch, length, heads · depth]`, or keys and values as `[batch, heads, length, depth]`; and these
    keys and values, those of before in front.
    """
    rank = [len(node.shape_of(each)) for each in operands]
    q, k, v = (
        node.apply("Transpose", node.apply("Reshape", each, node.known([0, 0, heads, -1])), perm=(0, 2, 1, 3))
        if r == 3
        else each
        for each, r in zip(operands, rank, strict=True)
    )
    if past[0] is not None:
        k, v = (node.apply("Concat", before, now, axis=2) for before, now in zip(past, (k, v), strict=True))
    dtype, shape = node.dtype(0), node.shape_of(q)
    scale = node.attr("scale", 0.0) or 1 / float(np.sqrt(shape[3]))
    products = node.apply("MatMul", q, node.apply("Transpose", k, perm=(0, 1, 3, 2)))
    logits = node.apply("Mul", products, _number(node, scale, dtype))
    if scores is not None:
        logits = node.apply("Add", logits, scores)
    for each in (_masked(node, mask, k, dtype), _causal(node, q, k, dtype)):
        logits = logits if each is None else node.apply("Add", logits, each)
    taken = node.apply("MatMul", node.apply("Softmax", logits, axis=-1), v)
    joined = node.apply("Reshape", node.apply("Transpose", taken, perm=(0, 2, 1, 3)), node.known([0, 0, -1]))
    return joined if node.output_count == 1 else (joined, k, v)


def _masked(node: Node, mask: Any, k: Any, dtype: str) -> Any:
    """What is added to the logits of keys that a mask of `[batch, keys]` or `[batch, queries, keys]` leaves out."""
    if mask is None:
        return None
    shape = node.shape_of(mask)
    if len(shape) == 1:  # how many keys each row has
        places = node.apply(
            "Range", _number(node, 0, "int64"), _size(node, node.shape_of(k)[2]), _number(node, 1, "int64")
        )
        mask = node.apply("Less", places, node.apply("Unsqueeze", node.apply("Cast", mask, to=7), node.known([1])))
        shape = [shape[0], 0]
    axes = {2: node.known([1, 2]), 3: node.known([1])}.get(len(shape))
    if axes is None:
        raise Refused(f"a mask of {len(shape)} axes")
    kept = node.apply("Cast", node.apply("Unsqueeze", mask, axes), to=9)
    filler = _number(node, node.attr("mask_filter_value", -10000.0), dtype)
    return node.apply("Where", kept, _number(node, 0.0, dtype), filler)


def _causal(node: Node, q: Any, k: Any, dtype: str) -> Any:
    """What is added to the logits of keys behind a query, where it sees those before it alone."""
    if not node.attr("unidirectional", 0):
        return None
    queries, keys = node.shape_of(q)[2], node.shape_of(k)[2]
    one = _number(node, 1, "int64")
    at = node.apply("Range", _size(node, keys - queries), _size(node, keys), one)
    places = node.apply("Range", _number(node, 0, "int64"), _size(node, keys), one)
    seen = node.apply("LessOrEqual", places, node.apply("Unsqueeze", at, node.known([1])))
    lowest = _number(node, float(np.finfo("float16" if dtype == "float16" else "float32").min), dtype)
    return node.apply("Where", seen, _number(node, 0.0, dtype), lowest)
