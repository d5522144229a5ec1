"""GroupQueryAttention and RotaryEmbedding (domain com.microsoft), as ONNX Runtime computes them on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import cast, full_precision, relax_dim, reshaped
from relaxc.service.frontend.onnx.ops.registry import op
from relaxc.service.frontend.onnx.values import Known

ZERO = tirx.const(0, "int64")


def _heads(node: Node, x: Any, heads: int) -> Any:
    """`[batch, length, heads · depth]` as `[batch, heads, length, depth]`."""
    return node.apply("Transpose", node.apply("Reshape", x, node.known([0, 0, heads, -1])), perm=(0, 2, 1, 3))


def _joined(node: Node, x: Any) -> Any:
    return node.apply("Reshape", node.apply("Transpose", x, perm=(0, 2, 1, 3)), node.known([0, 0, -1]))


def _rotated(node: Node, x: Any, places: Any, tables: tuple[Any, Any], *, interleaved: bool) -> Any:
    """Return `[batch, heads, length, depth]` with its first `2 · half` numbers turned in pairs by the angles of their
    rows' places, `[batch, length]`, `[1, length]` or the place `[1]` of the first. Places stay within the tables.
    """

    def kernel(x: te.Tensor, places: te.Tensor, cos: te.Tensor, sin: te.Tensor) -> te.Tensor:
        rows, half = cos.shape

        def element(n: Any, h: Any, s: Any, d: Any) -> Any:
            given = places(0) + s if len(places.shape) == 1 else places(n, s)
            row = tirx.max(tirx.min(given.astype("int64"), rows - 1), ZERO)
            pair = tirx.floordiv(d, 2) if interleaved else tirx.floormod(d, half)
            first = tirx.floormod(d, 2) == 0 if interleaved else d < half
            pair = tirx.min(pair, half - 1)
            low, high = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
            a, b = x(n, h, s, low), x(n, h, s, high)
            c, t = cos(row, pair), sin(row, pair)
            turned = tirx.Select(first, a * c - b * t, a * t + b * c)
            return tirx.if_then_else(d < 2 * half, turned, x(n, h, s, d))

        return te.compute(x.shape, element, name="rotary")

    cos, sin = tables
    return full_precision(
        node, lambda x, cos, sin: node.te(kernel, x, places, cos, sin, primfunc_name_hint="rotary"), x, cos, sin
    )


@op("com.microsoft::RotaryEmbedding")
def _rotary(node: Node) -> Any:
    if node.attr("is_packed_batching", 0) or node.attr("scale", 1.0) != 1.0:
        raise Refused("is_packed_batching=1, or a scale")
    x, rank = node.tensor(0), node.rank(0)
    tables, interleaved = (node.tensor(2), node.tensor(3)), bool(node.attr("interleaved", 0))
    if rank == 4:
        return _rotated(node, x, node.tensor(1), tables, interleaved=interleaved)
    half, turned = node.shape(2)[1], node.attr("rotary_embedding_dim", 0)
    heads = node.attr("num_heads", 0)
    if turned and not heads:
        raise Refused("rotary_embedding_dim without num_heads")
    if not heads:
        width = node.shape(0)[2]
        if not isinstance(width, int) or not isinstance(half, int):
            raise Refused("heads of a symbolic size")
        heads = width // (2 * half)
    made = _rotated(node, _heads(node, x, heads), node.tensor(1), tables, interleaved=interleaved)
    return _joined(node, made)


_PLAIN = {"smooth_softmax": 0, "qk_output": 0, "k_quant_type": "NONE", "v_quant_type": "NONE"}
"""Attributes that ask for another function where they have another value."""


@op("com.microsoft::GroupQueryAttention")
def _group_query_attention(node: Node) -> Any:
    """Attention whose keys and values have fewer heads; those of before are in front, as far as each row has them."""
    if any(node.attr(name, plain) not in (plain, -1) for name, plain in _PLAIN.items()) or node.output_count > 3:
        raise Refused(f"one of {', '.join(_PLAIN)}, or a fourth output")
    if any(node.has(index) for index in range(11, len(node.inputs))) or node.dtype(0) == "int8":
        raise Refused("head_sink, or scales of a quantized cache")
    q, k, v = _operands(node)
    length, total = node.shape_of(q)[2], node.dims(6, "total_sequence_length")[0]
    starts = _starts(node, length, total)
    if node.attr("do_rotary", 0):
        places = node.tensor(9) if node.has(9) else _places(node, starts, length)
        tables, interleaved = (node.tensor(7), node.tensor(8)), bool(node.attr("rotary_interleaved", 0))
        q, k = (_rotated(node, each, places, tables, interleaved=interleaved) for each in (q, k))
    k, v = (_cached(node, each, starts, index, total) for each, index in ((k, 3), (v, 4)))
    y = _joined(node, _attended(node, q, k, v, starts))
    return y if node.output_count == 1 else (y, k, v)


def _operands(node: Node) -> list[Any]:
    heads, fewer = node.attr("num_heads"), node.attr("kv_num_heads")
    if node.has(1):
        given = [node.tensor(index) for index in (0, 1, 2)]
    else:
        width = node.shape(0)[2]
        depth = width // (heads + 2 * fewer)
        sizes = node.known([depth * heads, depth * fewer, depth * fewer])
        given = node.apply("Split", node.tensor(0), sizes, outputs=3, axis=2)
    return [_heads(node, x, count) for x, count in zip(given, (heads, fewer, fewer), strict=True)]


def _starts(node: Node, length: Any, total: Any) -> Any:
    """How many keys each row has before those of now: none where these are all that there are."""
    given = node.tensor(5)
    flat = node.emit(cast(reshaped(node, given, [node.shape(0)[0]]), "int64"))

    def kernel(last: te.Tensor, length: Any, total: Any) -> te.Tensor:
        def element(n: Any) -> Any:
            return tirx.Select(length == total, ZERO, tirx.max(last(n) + 1 - length, ZERO))

        return te.compute(last.shape, element, name="starts")

    return node.te(kernel, flat, relax_dim(length), relax_dim(total), primfunc_name_hint="starts")


def _places(node: Node, starts: Any, length: Any) -> Any:
    def kernel(starts: te.Tensor, length: Any) -> te.Tensor:
        return te.compute((starts.shape[0], length), lambda n, s: starts(n) + s, name="places")

    return node.te(kernel, starts, relax_dim(length), primfunc_name_hint="places")


def _cached(node: Node, now: Any, starts: Any, index: int, total: Any) -> Any:
    """The keys of before and those of now behind them, on an axis that holds both; 0 behind these."""
    past = [node.tensor(index)] if node.has(index) else []
    room = node.shape(index)[2] if past else 0
    if not node.scope.analyzer.can_prove(relax_dim(total) >= relax_dim(room)):
        total = tirx.max(relax_dim(total), relax_dim(room))

    def kernel(now: te.Tensor, starts: te.Tensor, *rest: Any) -> te.Tensor:
        *past, total = rest

        def element(n: Any, h: Any, s: Any, d: Any) -> Any:
            at, zero = s - starts(n), tirx.const(0, now.dtype)
            old = tirx.if_then_else(s < past[0].shape[2], past[0](n, h, s, d), zero) if past else zero
            new = tirx.if_then_else(tirx.And(at >= 0, at < now.shape[2]), now(n, h, at, d), zero)
            return tirx.if_then_else(at < 0, old, new)

        return te.compute((*now.shape[:2], total, now.shape[3]), element, name="cache")

    return node.te(kernel, now, starts, *past, relax_dim(total), primfunc_name_hint="cache")


def _attended(node: Node, q: Any, k: Any, v: Any, starts: Any) -> Any:
    dtype, shape = dtype_of(q), node.shape_of(q)
    fewer = node.attr("kv_num_heads")
    each, keys, depth = node.attr("num_heads") // fewer, node.shape_of(k)[2], shape[3]
    wide = node.known([shape[0], fewer, each, shape[2], depth])
    q = node.apply("Reshape", q, wide)
    k, v = (node.apply("Unsqueeze", x, node.known([2])) for x in (k, v))

    def number(value: float) -> Known:
        return Known(np.array(value, node.numpy_dtype(dtype)), dtype)

    logits = node.apply("MatMul", q, node.apply("Transpose", k, perm=(0, 1, 2, 4, 3)))
    logits = node.apply("Mul", logits, number(node.attr("scale", 0.0) or 1 / float(np.sqrt(depth))))
    if cap := node.attr("softcap", 0.0):
        logits = node.apply("Mul", node.apply("Tanh", node.apply("Div", logits, number(cap))), number(cap))
    if node.has(10):
        scores = node.apply("Reshape", logits, node.known([shape[0], fewer * each, shape[2], keys]))
        scores = node.apply("Add", scores, node.tensor(10))
        logits = node.apply("Reshape", scores, node.known([shape[0], fewer, each, shape[2], keys]))
    logits = node.apply("Where", _seen(node, starts, shape[2], keys), logits, number(_LOWEST[dtype]))
    taken = node.apply("MatMul", node.apply("Softmax", logits, axis=-1), v)
    return node.apply("Reshape", taken, node.known([shape[0], fewer * each, shape[2], depth]))


_LOWEST = {"float16": -65504.0, "float32": -3.4028234663852886e38, "bfloat16": -3.3895313892515355e38}


def _seen(node: Node, starts: Any, length: Any, keys: Any) -> Any:
    """Whether a query sees a key: those up to its own place, and of these the last of a window."""
    window = node.attr("local_window_size", -1)

    def kernel(starts: te.Tensor, length: Any, keys: Any) -> te.Tensor:
        def element(n: Any, _h: Any, _e: Any, s: Any, t: Any) -> Any:
            own = starts(n) + s
            return tirx.And(t <= own, t > own - window) if window > 0 else t <= own

        return te.compute((starts.shape[0], 1, 1, length, keys), element, name="seen")

    return node.te(kernel, starts, relax_dim(length), relax_dim(keys), primfunc_name_hint="seen")
