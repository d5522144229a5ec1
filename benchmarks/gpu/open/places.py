"""Blocks over values with channels in dim 1 and one to three dims of places: lines, images and volumes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.open.norms import GlobalResponse, activation, norm_of_channels

__all__ = ["Pooled", "place_block", "stem"]

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _conv(
    chance: random.Random, dims: int, given: int, made: int, *, kernel: int = 0, stride: int = 1, groups: int = 0
) -> nn.Module:
    """A convolution that keeps the places, or leaves one of `stride`; what is not given is drawn."""
    kernel = kernel or chance.choice((1, 3, 3, 3, 5))
    dilation = chance.choice((1, 1, 1, 2, 3)) if stride == 1 and kernel > 1 else 1
    some = [g for g in (1, 1, 1, 2, 4, 8, given) if given % g == 0 and made % g == 0]
    return _CONV[dims - 1](
        given, made, kernel, stride, dilation * (kernel // 2), dilation, groups or chance.choice(some),
        bias=chance.random() < 0.5,
    )  # fmt: skip


def stem(chance: random.Random, dims: int, given: int, made: int) -> nn.Module:
    """Return a strided convolution of the input, with a norm and an activation."""
    kernel = chance.choice((3, 5, 7))
    conv = _CONV[dims - 1](given, made, kernel, stride=2, padding=kernel // 2)
    return nn.Sequential(conv, norm_of_channels(chance, made, dims), activation(chance))


class _Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class _Gate(nn.Module):
    """Squeeze-excite: a factor for each channel, from the means over the places."""

    def __init__(self, chance: random.Random, channels: int, dims: int) -> None:
        super().__init__()
        low = max(8, channels // chance.choice((4, 8, 16)))
        self.down, self.up = _CONV[dims - 1](channels, low, 1), _CONV[dims - 1](low, channels, 1)
        self.act, self.gate = activation(chance), chance.choice((nn.Sigmoid, nn.Hardsigmoid))()
        self.dims = tuple(range(2, dims + 2))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(self.act(self.down(x.mean(self.dims, keepdim=True)))))


class _Places(nn.Module):
    """A factor for each place, from mean and maximum over the channels (CBAM)."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.conv = _CONV[dims - 1](2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)))


class _Next(nn.Module):
    """ConvNeXt V2: depthwise, then an MLP of the channels with a GRN."""

    def __init__(self, channels: int, dims: int) -> None:
        super().__init__()
        self.conv = _CONV[dims - 1](channels, channels, 7, padding=3, groups=channels)
        self.mlp = nn.Sequential(
            nn.LayerNorm(channels), nn.Linear(channels, 4 * channels), nn.GELU(), GlobalResponse(4 * channels),
            nn.Linear(4 * channels, channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.conv(x).movedim(1, -1)).movedim(-1, 1)


class _UpDown(nn.Module):
    """Down by a stride, up by a transposed convolution, joined with what came (U-Net)."""

    def __init__(self, chance: random.Random, channels: int, dims: int) -> None:
        super().__init__()
        self.down = _conv(chance, dims, channels, 2 * channels, kernel=3, stride=2, groups=1)
        self.norm, self.act = norm_of_channels(chance, 2 * channels, dims), activation(chance)
        self.up = _TRANSPOSED[dims - 1](2 * channels, channels, 2, stride=2)
        self.join = _conv(chance, dims, 2 * channels, channels, groups=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.act(self.norm(self.down(x))))
        for dim, size in enumerate(x.shape[2:], 2):
            y = y.narrow(dim, 0, size)
        return self.join(torch.cat([x, y], 1))


class _Pyramid(nn.Module):
    """Means over 1, 2 and 4 parts a side, brought back to the size and joined (PSPNet)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels // 4, 1) for _ in range(3))
        self.join = nn.Conv2d(channels + 3 * (channels // 4), channels, 3, padding=1)
        self.mode = "bilinear"

    def forward(self, x: Tensor) -> Tensor:
        parts = [
            functional.interpolate(conv(functional.adaptive_avg_pool2d(x, n)), x.shape[2:], mode=self.mode)
            for n, conv in zip((1, 2, 4), self.convs, strict=True)
        ]
        return self.join(torch.cat([x, *parts], 1))


class _Resized(nn.Module):
    """A block at half the size, brought back."""

    def __init__(self, body: nn.Module, mode: str) -> None:
        super().__init__()
        self.body, self.mode = body, mode

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.interpolate(self.body(functional.max_pool2d(x, 2)), x.shape[2:], mode=self.mode)


class _Bins(nn.Module):
    """A softmax over 16 bins of each place and side, and its mean (the boxes of YOLO), as factors of the channels."""

    def __init__(self, channels: int, dims: int) -> None:
        super().__init__()
        self.bins = _CONV[dims - 1](channels, 64, 1)
        self.back = _CONV[dims - 1](4, channels, 1)
        self.register_buffer("values", torch.arange(16).float().view(1, 1, 16, 1) / 16)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.bins(x).flatten(2).unflatten(1, (4, 16)).softmax(2)
        return x + self.back((shares * self.values).sum(2).unflatten(2, x.shape[2:]))


class _OverPlaces(nn.Module):
    """Attention between the places of an image, or between its channels (XCiT)."""

    def __init__(self, channels: int, heads: int, *, of_channels: bool) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(1, channels),
            nn.Conv1d(channels, 3 * channels, 1),
            nn.Conv1d(channels, channels, 1),
        )
        self.heads, self.of_channels = heads, of_channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x).flatten(2)
        q, k, v = self.qkv(y).unflatten(1, (3, self.heads, -1)).unbind(1)
        if self.of_channels:
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
            z = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        else:
            z = functional.scaled_dot_product_attention(*(each.transpose(-1, -2) for each in (q, k, v))).transpose(
                -1, -2
            )
        return x + self.out(z.flatten(1, 2)).unflatten(2, x.shape[2:])


def place_block(chance: random.Random, channels: int, dims: int) -> nn.Module:
    """Return a block that keeps channels and places."""

    def unit(given: int, made: int, **fixed: int) -> Sequence[nn.Module]:
        return _conv(chance, dims, given, made, **fixed), norm_of_channels(chance, made, dims), activation(chance)

    kinds = ("plain", "plain", "bottleneck", "bottleneck", "gate", "places", "next", "inverted", "updown", "bins")
    images = ("pyramid", "attention", "channels", "resize")
    kind = chance.choice(kinds + images if dims == 2 else kinds)
    if kind == "plain":
        return _Residual(nn.Sequential(*unit(channels, channels), *unit(channels, channels)[:2]))
    if kind == "bottleneck":
        low = channels // 2
        more = [_Gate(chance, channels, dims)] if chance.random() < 0.4 else []
        return _Residual(
            nn.Sequential(
                *unit(channels, low, kernel=1), *unit(low, low, kernel=3), *unit(low, channels, kernel=1)[:2], *more
            )
        )
    if kind == "inverted":
        high = 4 * channels
        return _Residual(
            nn.Sequential(
                *unit(channels, high, kernel=1, groups=1), *unit(high, high, groups=high), _Gate(chance, high, dims),
                *unit(high, channels, kernel=1, groups=1)[:2],
            )
        )  # fmt: skip
    if kind == "resize":
        return _Resized(nn.Sequential(*unit(channels, channels)), chance.choice(("nearest", "bilinear")))
    made = {
        "gate": lambda: nn.Sequential(*unit(channels, channels), _Gate(chance, channels, dims)),
        "places": lambda: nn.Sequential(*unit(channels, channels), _Places(dims)),
        "next": lambda: _Next(channels, dims),
        "updown": lambda: _UpDown(chance, channels, dims),
        "bins": lambda: _Bins(channels, dims),
        "pyramid": lambda: _Pyramid(channels),
        "attention": lambda: _OverPlaces(channels, chance.choice((2, 4)), of_channels=False),
        "channels": lambda: _OverPlaces(channels, chance.choice((2, 4)), of_channels=True),
    }
    return made[kind]()


class Pooled(nn.Module):
    """The end of a network over places: their means, and a product."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(channels), nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return a row of each."""
        return self.head(self.norm(x.flatten(2).mean(2)))
