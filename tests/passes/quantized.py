"""A layer's attention as quantization leaves it: products of bytes, and quantizations around every product."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.common.constants import constant

__all__ = ["HEADS", "QUERIES", "WIDTH", "attention_of", "data", "projected", "round_trip"]

HEADS, QUERIES, WIDTH = 2, 9, 16


def data(seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (2, QUERIES, WIDTH)).astype("uint8")


def quantize(x: relax.Expr, scale: float, zero: int, dtype: str = "uint8") -> relax.Expr:
    return op.quantize(x, relax.const(scale, "float32"), relax.const(zero, dtype), 1, dtype)


def dequantize(x: relax.Expr, scale: float, zero: int) -> relax.Expr:
    return op.dequantize(x, relax.const(scale, "float32"), relax.const(zero, str(x.ty.dtype)), 1, "float32")


def round_trip(x: relax.Expr, scale: float, zero: int = 128, dtype: str = "uint8") -> relax.Expr:
    """`x` quantized and dequantized. A builder's `emit` gives each step a variable of its own."""
    builder = relax.BlockBuilder.current()
    return dequantize(builder.emit(quantize(x, scale, zero, dtype)), scale, zero)


def projected(x: relax.Expr, seed: int, *, scaled: bool = True, zero: int = 120) -> relax.Expr:
    """`[B, H, S, D]` of a product of bytes, quantized before its bias, moved, and quantized again; in 16 bits."""
    builder, draw = relax.BlockBuilder.current(), np.random.default_rng(seed)
    weight = constant(draw.integers(-127, 128, (WIDTH, WIDTH)).astype("int8"))
    steps: list[Any] = [
        lambda y: op.subtract(y, constant(draw.integers(-99, 99, WIDTH).astype("int32"))),
        lambda y: op.astype(y, "float32"),
        lambda y: op.multiply(y, constant(draw.uniform(1e-4, 2e-4, WIDTH).astype("float32"))),
        lambda y: round_trip(y, 0.02, zero),
        lambda y: op.add(constant(draw.uniform(-1, 1, WIDTH).astype("float32")), y),
        lambda y: op.reshape(y, [2, QUERIES, HEADS, WIDTH // HEADS]),
        lambda y: op.permute_dims(y, [0, 2, 1, 3]),
        *([lambda y: op.multiply(y, relax.const(0.7, "float32"))] if scaled else []),
        lambda y: round_trip(y, 0.015 + seed / 1000, 128 + seed),
        lambda y: op.astype(y, "float16"),
    ]
    value = builder.emit(op.matmul(x, weight, "int32"))
    for step in steps:
        value = builder.emit(step(value))
    return value


def attention_of(q: relax.Expr, k: relax.Expr, v: relax.Expr, *, mask: relax.Expr | None = None) -> relax.Expr:
    """`[B, S, H * D]` in uint8: scores, weights and result quantized."""
    builder = relax.BlockBuilder.current()

    def emit(value: relax.Expr) -> relax.Expr:
        return builder.emit(value)

    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])), "float32"))
    scores = emit(round_trip(scores, 0.03, 100))
    scores = scores if mask is None else emit(op.add(scores, mask))
    weights = emit(round_trip(emit(op.nn.softmax(scores, -1)), 0.003, 0))
    values = emit(op.matmul(emit(op.astype(weights, "float16")), v, "float32"))
    values = emit(round_trip(values, 0.01, 130))
    heads = emit(op.permute_dims(values, [0, 2, 1, 3]))
    return quantize(emit(op.reshape(heads, [2, QUERIES, WIDTH])), 0.011, 127)
