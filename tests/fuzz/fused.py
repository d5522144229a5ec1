"""How nodes of attention are drawn, of ONNX's own and ONNX Runtime's, and of what its optimizers fuse."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.pool import Pool
from tests.fuzz.rules import Drawn, rule
from tests.fuzz.values import DTYPES

__all__: list[str] = []

F32, I32 = DTYPES["float32"], DTYPES["int32"]


def _rows(pool: Pool) -> tuple[str, int, int, int]:
    """A value `[batch, length, width]`, and these."""
    value = pool.value(("float32",), ranks=(3,))
    return value, *pool.shape(value)


def _factor(pool: Pool, size: int) -> int:
    return pool.choice([each for each in (1, 2, 3, 4, 8) if size % each == 0])


def _mask(pool: Pool, *shape: int) -> str:
    """Ones, and behind them zeros; at least a one in each row."""
    ends = pool.rng.integers(1, shape[-1] + 1, (*shape[:-1], 1))
    return pool.constant((np.arange(shape[-1]) < ends).astype(np.int32))


@rule("com.microsoft::Attention")
def _attention(pool: Pool) -> Drawn:
    value, batch, length, width = _rows(pool)
    heads, depth = pool.choice((1, 2, 3)), pool.choice((1, 4, 8))
    wide = 3 * heads * depth
    inputs = [value, pool.constant_of((width, wide), F32), pool.constant_of((wide,), F32)]
    if pool.chance(0.4):
        inputs.append(_mask(pool, batch, length))
    return inputs, {"num_heads": heads, **({"unidirectional": 1} if pool.chance(0.4) else {})}


@rule("com.microsoft::MultiHeadAttention")
def _multi_head(pool: Pool) -> Drawn:
    value, batch, length, width = _rows(pool)
    heads, keys = _factor(pool, width), pool.choice((length, pool.size()))
    inputs = [value, *(pool.made((batch, keys, width), F32, value) for _ in "kv")]
    inputs.append(pool.constant_of((3 * width,), F32) if pool.chance(0.3) else "")
    inputs.append(_mask(pool, batch, keys) if pool.chance(0.3) else "")
    if pool.chance(0.3):
        inputs.append(pool.constant_of((1, heads, length, keys), F32))
    while not inputs[-1]:
        inputs.pop()
    causal = {"unidirectional": 1} if keys == length and pool.chance(0.3) else {}
    return inputs, {"num_heads": heads, **causal, **({"scale": 0.5} if pool.chance(0.3) else {})}


def _tables(pool: Pool, half: int) -> list[str]:
    angles = pool.rng.uniform(-3, 3, (32, half))
    return [pool.constant(each(angles).astype(np.float32)) for each in (np.cos, np.sin)]


@rule("com.microsoft::GroupQueryAttention")
def _group_query(pool: Pool) -> Drawn:
    fewer, group, depth = pool.choice((1, 2)), pool.choice((1, 2, 3)), 16
    batch, before = pool.choice((1, 1, 2)), pool.choice((0, 3, 7))
    length = 1 if before and batch > 1 else pool.choice((1, 2, 5))
    inputs = [pool.made((batch, length, size * depth), F32, "") for size in (fewer * group, fewer, fewer)]
    if before:
        inputs += [pool.constant_of((batch, fewer, before, depth), F32) for _ in "kv"]
    else:
        inputs += ["", ""]
    total = before + length
    inputs += [pool.constant(np.full(batch, total - 1, np.int32)), pool.constant(np.array(total, np.int32))]
    found: dict[str, Any] = {"num_heads": fewer * group, "kv_num_heads": fewer, "outputs": 3}
    if pool.chance(0.4):
        inputs += _tables(pool, depth // 2)
        found |= {"do_rotary": 1, "rotary_interleaved": pool.integer(0, 1)}
    for name, value in (("softcap", 5.0), ("local_window_size", 3), ("scale", 0.5)):
        if pool.chance(0.3):
            found[name] = value
    return inputs, found


@rule("com.microsoft::RotaryEmbedding")
def _rotary(pool: Pool) -> Drawn:
    heads, half = pool.choice((1, 2, 3)), pool.choice((1, 2, 4))
    batch, length = pool.choice((1, 2)), pool.integer(1, 6)
    shape = pool.choice(((batch, heads, length, 2 * half), (batch, length, heads * 2 * half)))
    places = pool.choice((np.array([2]), pool.rng.integers(0, 32, (batch, length))))
    inputs = [pool.made(shape, F32, ""), pool.constant(places.astype(np.int64)), *_tables(pool, half)]
    return inputs, {"interleaved": pool.integer(0, 1)}


@rule("RotaryEmbedding")
def _standard_rotary(pool: Pool) -> Drawn:
    heads, half = pool.choice((1, 2, 3)), pool.choice((1, 2, 4))
    batch, length = pool.choice((1, 2)), pool.integer(1, 6)
    shape = pool.choice(((batch, heads, length, 2 * half), (batch, length, heads * 2 * half)))
    places = pool.constant(pool.rng.integers(0, 32, (batch, length)).astype(np.int64))
    found = {"interleaved": pool.integer(0, 1), **({"num_heads": heads} if len(shape) == 3 else {})}
    return [pool.made(shape, F32, ""), *_tables(pool, half), places], found


@rule("Attention")
def _standard(pool: Pool) -> Drawn:
    fewer, group, depth = pool.choice((1, 2)), pool.choice((1, 1, 2)), pool.choice((1, 4, 8))
    batch, length, keys = pool.choice((1, 2)), pool.integer(1, 6), pool.integer(1, 6)
    sizes = ((fewer * group, length), (fewer, keys), (fewer, keys))
    is_flat = pool.chance(0.5)
    shapes = [(batch, n, h * depth) if is_flat else (batch, h, n, depth) for h, n in sizes]
    inputs = [pool.made(shape, F32, "") for shape in shapes]
    if pool.chance(0.3):
        inputs.append(pool.constant_of((length, keys), F32))
    found: dict[str, Any] = {"q_num_heads": fewer * group, "kv_num_heads": fewer} if is_flat else {}
    for name, value in (("softcap", 5.0), ("is_causal", 1), ("scale", 0.5)):
        if pool.chance(0.3):
            found[name] = value
    return inputs, found


@rule("com.microsoft::EmbedLayerNormalization")
def _embed(pool: Pool) -> Drawn:
    batch, length, width = pool.choice((1, 2)), pool.integer(1, 6), pool.choice((4, 8, 16))
    ids = pool.constant(pool.rng.integers(0, 9, (batch, length)).astype(np.int32))
    kinds = pool.constant(pool.rng.integers(0, 2, (batch, length)).astype(np.int32)) if pool.chance(0.6) else ""
    tables = [pool.constant_of((rows, width), F32) if rows else "" for rows in (9, 8, 2 if kinds else 0)]
    norm = [pool.constant_of((width,), F32) for _ in "gb"]
    mask = [_mask(pool, batch, length)] if pool.chance(0.5) else []
    return [ids, kinds, *tables, *norm, *mask], {"epsilon": 1e-5, "outputs": 2}


_ACTIVATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"activation": "Relu"},
    {"activation": "Tanh"},
    {"activation": "Sigmoid"},
    {"activation": "LeakyRelu", "activation_params": [0.3]},
    {"activation": "Clip", "activation_params": [-0.5, 1.0]},
    {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
)


@rule("com.microsoft::FusedConv")
def _fused_conv(pool: Pool) -> Drawn:
    value = pool.value(("float32",), ranks=(4,))
    channels, filters = pool.shape(value)[1], pool.choice((1, 3, 8, 16))
    kernel = [pool.integer(1, min(3, size)) for size in pool.shape(value)[2:]]
    inputs = [value, pool.constant_of((filters, channels, *kernel), F32), pool.constant_of((filters,), F32)]
    return inputs, {"kernel_shape": kernel, **pool.choice(_ACTIVATIONS)}


@rule("com.microsoft::FusedGemm")
def _fused_gemm(pool: Pool) -> Drawn:
    value = pool.value(("float32",), ranks=(2,))
    along, n, k = pool.integer(0, 1), pool.size(), pool.shape(value)[1]
    inputs = [value, pool.constant_of((n, k) if along else (k, n), F32), pool.constant_of((n,), F32)]
    activation = pool.choice(({}, {"activation": "Relu"}, {"activation": "LeakyRelu", "activation_alpha": 0.3}))
    return inputs, {"transB": along, "alpha": pool.choice((1.0, 0.5)), **activation}


@rule("com.microsoft::MatMulIntegerToFloat")
def _integer_to_float(pool: Pool) -> Drawn:
    value = pool.value(("uint8", "int8"), ranks=(2, 3))
    n, kind = pool.size(), pool.choice(("uint8", "int8"))
    weight = pool.constant_of((pool.shape(value)[-1], n), DTYPES[kind])  # ONNX Runtime may saturate wide ones
    scales = [pool.constant(np.array(0.1, np.float32)), pool.constant_of(pool.choice(((), (n,))), F32)]
    zeros = [pool.constant_of((), pool.dtype(value)), pool.constant_of((), DTYPES[kind])] if pool.chance(0.5) else []
    return [value, weight, *scales, *zeros], {}
