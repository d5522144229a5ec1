"""The smallest models that still have every part: for tests that are not about models."""

from __future__ import annotations

import torch
from torch import nn

from tests.zoo import Size, ZooModel


def _batch() -> torch.export.Dim:
    return torch.export.Dim("batch", min=1, max=64)


def mlp(size: Size) -> ZooModel:
    """Linear, ReLU, Linear, on x[batch, 16]."""
    width = 32 if size == "small" else 1024
    module = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 10))
    return ZooModel(module, (torch.randn(2, 16),), dynamic={"input": {0: _batch()}})


def cnn(size: Size) -> ZooModel:
    """Convolution, BatchNorm, ReLU, pooling and a linear layer, on an image."""
    width = 8 if size == "small" else 64
    module = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )
    return ZooModel(module, (torch.randn(2, 3, 16, 16),), dynamic={"input": {0: _batch()}})
