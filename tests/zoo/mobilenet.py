"""MobileNetV2 (Sandler et al. 2018) and EfficientNet-B0 (Tan and Le 2019): inverted residual blocks."""

from __future__ import annotations

import torch
from torch import nn

from tests.zoo import Size, ZooModel


def _conv(inputs: int, outputs: int, kernel: int, stride: int, groups: int, act: type[nn.Module]) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        act(),
    )


class SqueezeExcite(nn.Module):
    """x * sigmoid(W2 silu(W1 mean(x)))."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down = nn.Conv2d(width, squeezed, 1)
        self.up = nn.Conv2d(squeezed, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.up(nn.functional.silu(self.down(self.pool(x)))))


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise kxk, optional squeeze-excite, project 1x1; added to x where shapes allow."""

    def __init__(
        self, inputs: int, outputs: int, *, stride: int, expand: int, kernel: int, act: type[nn.Module], excite: bool
    ) -> None:
        super().__init__()
        width = inputs * expand
        parts: list[nn.Module] = [] if expand == 1 else [_conv(inputs, width, 1, 1, 1, act)]
        parts.append(_conv(width, width, kernel, stride, width, act))
        if excite:
            parts.append(SqueezeExcite(width, max(1, inputs // 4)))
        parts.append(_conv(width, outputs, 1, 1, 1, nn.Identity))
        self.parts = nn.Sequential(*parts)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.parts(x) if self.residual else self.parts(x)


# (expand, outputs, repeats, first stride, kernel), tables 2 and 1 of the papers.
_V2 = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3)]
_V2 += [(6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3)]
_B0 = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)]
_B0 += [(6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]


class MobileNet(nn.Module):
    """image[n, 3, h, w] -> logits[n, classes]."""

    def __init__(self, rows: list[tuple[int, int, int, int, int]], act: type[nn.Module], excite: bool, small: bool):
        super().__init__()
        divide = 4 if small else 1
        inputs, head = 32 // divide, 1280 // (divide * 4 if small else 1)
        blocks: list[nn.Module] = [_conv(3, inputs, 3, 2, 1, act)]
        for expand, outputs, repeats, stride, kernel in rows:
            for index in range(min(repeats, 2) if small else repeats):
                blocks.append(
                    InvertedResidual(
                        inputs,
                        outputs // divide,
                        stride=1 if index else stride,
                        expand=expand,
                        kernel=kernel,
                        act=act,
                        excite=excite,
                    )
                )
                inputs = outputs // divide
        blocks.append(_conv(inputs, head, 1, 1, 1, act))
        self.features = nn.Sequential(*blocks)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(head, 10 if small else 1000))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(image).mean((2, 3)))


def _model(module: MobileNet, size: Size) -> ZooModel:
    image = torch.randn(2, 3, 64, 64) if size == "small" else torch.randn(1, 3, 224, 224)
    return ZooModel(module, (image,), dynamic={"image": {0: torch.export.Dim("batch", min=1, max=64)}})


def mobilenet_v2(size: Size) -> ZooModel:
    """3.5 M weights at full size; ReLU6."""
    return _model(MobileNet(_V2, nn.ReLU6, False, size == "small"), size)


def efficientnet(size: Size) -> ZooModel:
    """EfficientNet-B0, 5.3 M weights at full size; SiLU and squeeze-excite."""
    return _model(MobileNet(_B0, nn.SiLU, True, size == "small"), size)
