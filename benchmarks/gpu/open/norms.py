"""Norms and activations of drawn networks, of values with channels in dim 1 or last."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["ACTIVATIONS", "GlobalResponse", "activation", "norm_of_channels", "norm_of_rows"]

ACTIVATIONS = (nn.ReLU, nn.SiLU, nn.GELU, nn.Hardswish, nn.LeakyReLU, nn.ELU, nn.Mish)


def activation(chance: random.Random) -> nn.Module:
    """Return one, drawn."""
    return chance.choice(ACTIVATIONS)()


class GlobalResponse(nn.Module):
    """GRN of ConvNeXt V2, channels last: each channel by its norm over the places, beside that of the others."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.zeros(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return `gamma * (x * n) + beta + x`."""
        norm = torch.norm(x, p=2, dim=tuple(range(1, x.dim() - 1)), keepdim=True)
        return self.gamma * (x * (norm / (norm.mean(-1, keepdim=True) + 1e-6))) + self.beta + x


class _OverChannels(nn.Module):
    """LayerNorm of the channels of each place, channels in dim 1."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


class _OverChannelsByHand(nn.Module):
    """The same in the formulas of SAM and ConvNeXt."""

    def __init__(self, channels: int, dims: int) -> None:
        super().__init__()
        shape = (channels, *[1] * dims)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        square = (x - mean).pow(2).mean(1, keepdim=True)
        return self.weight * ((x - mean) / torch.sqrt(square + 1e-6)) + self.bias


class _OverAll(nn.Module):
    """LayerNorm over channels and places, with a weight for each channel."""

    def __init__(self, channels: int, dims: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.ones(channels, *[1] * dims)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[1:]) * self.weight + self.bias


def norm_of_channels(chance: random.Random, channels: int, dims: int) -> nn.Module:
    """Return a norm of a value of `dims` dims behind its channels, mostly a batch norm."""
    batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
    instance = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1]
    kind = chance.choice(("batch",) * 5 + ("group", "group", "instance", "channels", "by_hand", "all"))
    if kind == "group":
        return nn.GroupNorm(chance.choice([g for g in (1, 4, 8, 16, 32) if channels % g == 0]), channels)
    if kind == "instance":
        return instance(channels, affine=chance.random() < 0.5)
    if kind == "channels":
        return _OverChannels(channels)
    if kind == "by_hand":
        return _OverChannelsByHand(channels, dims)
    return _OverAll(channels, dims) if kind == "all" else batch(channels)


def norm_of_rows(chance: random.Random, width: int) -> nn.Module:
    """Return a norm of rows."""
    return nn.RMSNorm(width) if chance.random() < 0.4 else nn.LayerNorm(width)
