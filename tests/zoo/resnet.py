"""ResNet-18 and ResNet-50 (He et al. 2015, the variant of torchvision: stride in the 3x3 convolution)."""

from __future__ import annotations

import torch

from relaxc.service.torch_backend.demo_model import ResNet
from tests.zoo import Size, ZooModel


def _model(depths: list[int], bottleneck: bool, size: Size) -> ZooModel:
    base, classes, pixels = (64, 1000, 224) if size == "full" else (8, 10, 64)
    batch = 1 if size == "full" else 2
    module = ResNet(depths, base, bottleneck, classes)
    dim = torch.export.Dim("batch", min=1, max=64)
    return ZooModel(module, (torch.randn(batch, 3, pixels, pixels),), dynamic={"image": {0: dim}})


def resnet18(size: Size) -> ZooModel:
    """11.7 M weights at full size."""
    return _model([2, 2, 2, 2], False, size)


def resnet50(size: Size) -> ZooModel:
    """25.6 M weights at full size."""
    return _model([3, 4, 6, 3] if size == "full" else [1, 2, 2, 1], True, size)
