"""A block of a diffusion UNet: convolutions with a time embedding, and attention to the image and to a text."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["DownBlock"]


class _Residual(nn.Module):
    def __init__(self, inputs: int, width: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, width, 3, padding=1)
        self.time = nn.Linear(time, width)
        self.norm2, self.conv2 = nn.GroupNorm(32, width), nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Conv2d(inputs, width, 1) if inputs != width else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(functional.silu(self.norm1(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


class _Attention(nn.Module):
    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(context, width, bias=False), nn.Linear(context, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        parts = (self.q(x), self.k(context), self.v(context))
        q, k, v = (y.view(y.shape[0], y.shape[1], self.heads, -1).transpose(1, 2) for y in parts)
        found = functional.scaled_dot_product_attention(q, k, v)
        return self.out(found.transpose(1, 2).reshape(x.shape))


class _Transformer(nn.Module):
    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.norm, self.into, self.back = nn.GroupNorm(32, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.image, self.text = _Attention(width, width, heads), _Attention(width, context, heads)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        batch, width, height, across = x.shape
        y = self.into(self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * across, width))
        z = self.norm1(y)
        y = y + self.image(z, z)
        y = y + self.text(self.norm2(y), context)
        value, gate = self.wide(self.norm3(y)).chunk(2, dim=-1)
        y = y + self.narrow(value * functional.gelu(gate))
        return x + self.back(y).view(batch, height, across, width).permute(0, 3, 1, 2)


class DownBlock(nn.Module):
    """`pairs` of a residual block and a transformer, then half the size: as Stable Diffusion's second block."""

    def __init__(self, inputs: int, width: int, time: int, context: int, heads: int, pairs: int) -> None:
        super().__init__()
        self.residuals = nn.ModuleList(_Residual(width if i else inputs, width, time) for i in range(pairs))
        self.transformers = nn.ModuleList(_Transformer(width, context, heads) for _ in range(pairs))
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        for residual, transformer in zip(self.residuals, self.transformers, strict=True):
            x = transformer(residual(x, time), context)
        return self.down(x)
