"""One decoding step of GPT-2's and of Llama's shapes, with a cache of keys and values, from drawn weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["MODELS", "Shape", "Step", "inputs"]


@dataclass(frozen=True)
class Shape:
    """A decoder: `keys` heads of keys and values; `gated`: RMS norms, rotary positions, and a gated MLP."""

    layers: int
    width: int
    heads: int
    keys: int
    hidden: int
    vocabulary: int
    gated: bool
    cache: int = 512

    @property
    def head(self) -> int:
        """Columns of a head."""
        return self.width // self.heads


MODELS = {
    "gpt2": Shape(12, 768, 12, 12, 3072, 50257, gated=False),
    "llama-134m": Shape(12, 768, 12, 4, 2048, 32000, gated=True),
}


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        norm: Any = nn.RMSNorm if shape.gated else nn.LayerNorm
        bias = not shape.gated
        self.before, self.between = norm(shape.width), norm(shape.width)
        self.qkv = nn.Linear(shape.width, (shape.heads + 2 * shape.keys) * shape.head, bias=bias)
        self.out = nn.Linear(shape.width, shape.width, bias=bias)
        self.up = nn.Linear(shape.width, shape.hidden * (1 + shape.gated), bias=bias)
        self.down = nn.Linear(shape.hidden, shape.width, bias=bias)

    def forward(self, x: Any, keys: Any, values: Any, turn: Any) -> tuple[Any, Any, Any]:
        shape = self.shape
        sizes = [shape.heads * shape.head, shape.keys * shape.head, shape.keys * shape.head]
        q, k, v = (
            part.view(1, 1, -1, shape.head).transpose(1, 2) for part in self.qkv(self.before(x)).split(sizes, -1)
        )
        if shape.gated:
            q, k = turn(q), turn(k)
        wide_k, wide_v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        many = shape.heads // shape.keys
        mixed = functional.scaled_dot_product_attention(
            q, wide_k.repeat_interleave(many, 1), wide_v.repeat_interleave(many, 1)
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, shape.width))
        wide = self.up(self.between(x))
        if shape.gated:
            gate, wide = wide.chunk(2, -1)
            return x + self.down(functional.silu(gate) * wide), k, v
        return x + self.down(functional.gelu(wide, approximate="tanh")), k, v


class Step(nn.Module):
    """The logits of one token, and its keys and values of every layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.table = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm: Any = (nn.RMSNorm if shape.gated else nn.LayerNorm)(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if not shape.gated:
            self.head.weight = self.table.weight
        nn.init.normal_(self.table.weight, std=0.02)
        angles = shape.cache / 10000 ** (torch.arange(0, shape.head, 2) / shape.head)
        self.register_buffer("cos", torch.cat([angles.cos()] * 2))
        self.register_buffer("sin", torch.cat([angles.sin()] * 2))
        self.register_buffer("place", 0.02 * torch.randn(1, 1, shape.width))

    def _turned(self, x: Any) -> Any:
        left, right = x.chunk(2, -1)
        return x * self.cos + torch.cat([-right, left], -1) * self.sin

    def forward(self, token: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
        x = self.table(token) if self.shape.gated else self.table(token) + self.place
        made = []
        for index, layer in enumerate(self.layers):
            x, *pair = layer(x, keys[index], values[index], self._turned)
            made.append(pair)
        return self.head(self.norm(x)), *(torch.stack([pair[i] for pair in made]) for i in (0, 1))


def inputs(shape: Shape) -> tuple[Any, ...]:
    """Return a token, and a cache of drawn keys and values."""
    size = (shape.layers, 1, shape.keys, shape.cache, shape.head)
    return torch.tensor([[math.isqrt(shape.vocabulary)]]), torch.randn(size), torch.randn(size)
