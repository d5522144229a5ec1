"""What `relaxc demo` compiles: `python -m relaxc.service.torch_backend.demo_model DIR` writes it in both formats."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from torch import nn

__all__ = ["Block", "ResNet", "write"]


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):  # type: ignore[misc]  # torch ships no types
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
        """Return the block's output."""
        y = x
        for part in self.parts[:-1]:
            y = torch.relu_(part(y))
        return torch.relu(self.parts[-1](y) + self.shortcut(x))


class ResNet(nn.Module):  # type: ignore[misc]
    """image[n, 3, h, w] -> logits[n, classes] (He et al. 2015, in torchvision's variant: strides in 3x3)."""

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
        """Return the logits."""
        logits: torch.Tensor = self.head(torch.flatten(self.pool(self.stages(self.stem(image))), 1))
        return logits


def write(folder: Path) -> None:
    """Write a ResNet-18 with seeded weights as resnet18.onnx and resnet18.pt2, 45 MB each.

    It is image float32[1, 3, 224, 224] → logits float32[1, 1000].
    """
    torch.manual_seed(0)
    model, example = ResNet([2, 2, 2, 2], 64, False, 1000).eval(), (torch.randn(1, 3, 224, 224),)
    torch.export.save(torch.export.export(model, example), folder / "resnet18.pt2")
    names = {"input_names": ["image"], "output_names": ["logits"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # The newer exporter needs onnxscript, which no extra of relaxc brings.
        torch.onnx.export(model, example, str(folder / "resnet18.onnx"), dynamo=False, **names)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
