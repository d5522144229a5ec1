"""ResNet-18 and ResNet-50 (He et al. 2015, the variant of torchvision: stride in the 3x3 convolution)."""

from __future__ import annotations

import torch
from torch import nn

from tests.zoo import Size, ZooModel


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """relu(f(x) + shortcut(x)); f is two 3x3 convolutions, or with `bottleneck` 1x1, 3x3, 1x1."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        if bottleneck:
            parts = [_conv_bn(inputs, width, 1), _conv_bn(width, width, 3, stride), _conv_bn(width, outputs, 1)]
        else:
            parts = [_conv_bn(inputs, width, 3, stride), _conv_bn(width, outputs, 3)]
        self.parts = nn.ModuleList(parts)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = _conv_bn(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for part in self.parts[:-1]:
            y = torch.relu_(part(y))
        return torch.relu(self.parts[-1](y) + self.shortcut(x))


class ResNet(nn.Module):
    """image[n, 3, h, w] -> logits[n, classes]."""

    def __init__(self, depths: list[int], base: int, bottleneck: bool, classes: int) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        inputs = base
        for stage, depth in enumerate(depths):
            width = base * 2**stage
            for index in range(depth):
                stages.append(Block(inputs, width, 2 if stage and not index else 1, bottleneck))
                inputs = width * 4 if bottleneck else width
        self.stem = nn.Sequential(_conv_bn(3, base, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.head = nn.Linear(inputs, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(torch.flatten(self.pool(self.stages(self.stem(image))), 1))


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
