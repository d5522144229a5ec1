"""A network from a seed alone: a stem, a few blocks at one or two sizes, an end; fp16 or bf16."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.open.places import Pooled, place_block, stem
from benchmarks.gpu.open.tokens import Summary, token_block

__all__ = ["Net", "draw", "drawn_inputs"]


@dataclass(frozen=True)
class Net:
    """A network in fp32 whose weights the seed draws; `shape` is that of one input, `dtype` what it runs in."""

    kind: str
    module: nn.Module
    shape: tuple[int, ...]
    dtype: str
    words: int = 0
    """Its input are as many words, if any."""


def draw(seed: int) -> Net:
    """Return the network of `seed`, the same whenever it is drawn."""
    chance = random.Random(f"open:{seed}")
    torch.manual_seed(seed)
    kind = chance.choice(("image",) * 4 + ("tokens",) * 4 + ("line", "line", "volume", "patches"))
    dtype = chance.choice(("float16", "bfloat16"))
    made = {"image": _image, "line": _line, "volume": _volume, "tokens": _tokens, "patches": _patches}[kind](chance)
    _settle(made[0])
    return Net(kind, made[0].eval().requires_grad_(False), *made[1:2], dtype, *made[2:])


def drawn_inputs(net: Net, batch: int, seed: int) -> tuple[Any, ...]:
    """Return inputs on the CPU, in the network's dtype."""
    draw = torch.Generator().manual_seed(seed)
    if net.words:
        return (torch.randint(0, net.words, (batch, *net.shape), generator=draw),)
    return (torch.randn(batch, *net.shape, generator=draw).to(getattr(torch, net.dtype)),)


def _settle(module: nn.Module) -> None:
    """Statistics and scales as a trained network has them, so that neither batch norms nor GRNs do nothing."""
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if name.endswith("running_mean"):
            value.data.normal_(0, 0.1)
        elif name.endswith("running_var"):
            value.data.uniform_(0.7, 1.3)
        elif name.endswith(("gamma", "beta", "bias")) and value.is_floating_point():
            value.data.normal_(0, 0.1)


def _places(chance: random.Random, dims: int, given: int, channels: int, blocks: int) -> nn.Module:
    """Blocks at one number of channels, a stride, and blocks at twice as many."""
    first = [place_block(chance, channels, dims) for _ in range(blocks)]
    last = [place_block(chance, 2 * channels, dims) for _ in range(blocks)]
    between = stem(chance, dims, channels, 2 * channels)
    end = Pooled(2 * channels, chance.choice((10, 101, 1000))) if chance.random() < 0.7 else nn.Identity()
    return nn.Sequential(stem(chance, dims, given, channels), *first, between, *last, end)


def _image(chance: random.Random) -> tuple[Any, ...]:
    side = chance.choice((64, 96, 112, 128, 160, 224))
    channels = chance.choice((24, 32, 48, 64, 96) if side < 200 else (16, 24, 32))
    return _places(chance, 2, 3, channels, chance.choice((1, 2))), (3, side, side)


def _line(chance: random.Random) -> tuple[Any, ...]:
    given, length = chance.choice((1, 2, 80)), chance.choice((1024, 3200, 8000))
    return _places(chance, 1, given, chance.choice((64, 96, 128)), 2), (given, length)


def _volume(chance: random.Random) -> tuple[Any, ...]:
    shape = chance.choice(((1, 32, 48, 48), (2, 48, 48, 48), (3, 16, 64, 64)))
    return _places(chance, 3, shape[0], chance.choice((16, 24, 32)), 1), shape


def _tokens(chance: random.Random) -> tuple[Any, ...]:
    tokens, width = chance.choice((49, 77, 128, 196, 256, 384)), chance.choice((192, 256, 384, 512, 768))
    words = chance.choice((0, 1000, 30_000))
    first = nn.Embedding(words, width) if words else nn.Linear(64, width)
    blocks = [token_block(chance, width, tokens) for _ in range(chance.choice((2, 3, 4)))]
    return nn.Sequential(first, *blocks, Summary(chance, width)), (tokens,) if words else (tokens, 64), words


class _Patches(nn.Module):
    """An image as rows of patches behind a token of their own."""

    def __init__(self, width: int, patch: int, side: int, first: nn.Module) -> None:
        super().__init__()
        self.first, self.conv = first, nn.Conv2d(32, width, patch, stride=patch)
        self.own = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, (side // 2 // patch) ** 2 + 1, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.first(x)).flatten(2).transpose(1, 2)
        return torch.cat([self.own.expand(x.shape[0], -1, -1), x], 1) + self.places


def _patches(chance: random.Random) -> tuple[Any, ...]:
    side, width = chance.choice((112, 224)), chance.choice((192, 384))
    tokens = (side // 2 // 8) ** 2 + 1
    first = stem(chance, 2, 3, 32)
    blocks = [token_block(chance, width, tokens) for _ in range(chance.choice((2, 3)))]
    return nn.Sequential(_Patches(width, 8, side, first), *blocks, Summary(chance, width)), (3, side, side)
