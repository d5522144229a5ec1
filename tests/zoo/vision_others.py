"""Vision models that the service does not list by name."""

from __future__ import annotations

import torch
import transformers
from torch import nn
from torch.nn import functional

from tests.zoo import Size, ZooModel
from tests.zoo.vision import _image

_VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}


def _pixels(size: Size, small: int) -> tuple[int, int]:
    return (small, 2) if size == "small" else (224, 1)


def clip_vision(size: Size) -> ZooModel:
    config = transformers.CLIPVisionConfig(**(_VIT if size == "small" else {}))
    return _image(transformers.CLIPVisionModel(config), *_pixels(size, 32))


def dinov2(size: Size) -> ZooModel:
    """Interpolates its position embedding to the image's size."""
    small = {k: v for k, v in _VIT.items() if k != "intermediate_size"}
    config = transformers.Dinov2Config(**(small if size == "small" else {}))
    return _image(transformers.Dinov2Model(config), *_pixels(size, 48))


def regnet(size: Size) -> ZooModel:
    small = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "groups_width": 4, "layer_type": "y"}
    config = transformers.RegNetConfig(**(small if size == "small" else {}))
    return _image(transformers.RegNetForImageClassification(config), *_pixels(size, 32))


def segformer(size: Size) -> ZooModel:
    """Upsamples every stage to one size: bilinear resize."""
    small = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "sr_ratios": [4, 2]}
    small |= {"num_attention_heads": [1, 2], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}
    config = transformers.SegformerConfig(**(small | {"decoder_hidden_size": 16} if size == "small" else {}))
    return _image(transformers.SegformerForSemanticSegmentation(config), *_pixels(size, 64))


def mobilevit(size: Size) -> ZooModel:
    """Unfolds an image into patches and folds it again."""
    small = {"hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 12, 16, 20, 24, 28, 32], "num_attention_heads": 4}
    config = transformers.MobileViTConfig(**(small if size == "small" else {}))
    return _image(transformers.MobileViTModel(config), *_pixels(size, 64))


def deit(size: Size) -> ZooModel:
    config = transformers.DeiTConfig(**(_VIT if size == "small" else {}))
    return _image(transformers.DeiTModel(config), *_pixels(size, 32))


def beit(size: Size) -> ZooModel:
    """Relative position biases gathered from a table."""
    config = transformers.BeitConfig(**(_VIT | {"use_relative_position_bias": True} if size == "small" else {}))
    return _image(transformers.BeitModel(config), *_pixels(size, 32))


def poolformer(size: Size) -> ZooModel:
    small = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
    config = transformers.PoolFormerConfig(**(small if size == "small" else {}))
    return _image(transformers.PoolFormerModel(config), *_pixels(size, 64))


def hf_resnet(size: Size) -> ZooModel:
    small = {"embedding_size": 8, "hidden_sizes": [8, 16, 24], "depths": [1, 2, 1]}
    config = transformers.ResNetConfig(**(small if size == "small" else {}))
    return _image(transformers.ResNetForImageClassification(config), *_pixels(size, 32))


def hf_mobilenet_v2(size: Size) -> ZooModel:
    """Pads by hand as TensorFlow does."""
    config = transformers.MobileNetV2Config(**({"depth_multiplier": 0.25} if size == "small" else {}))
    return _image(transformers.MobileNetV2ForImageClassification(config), *_pixels(size, 64))


def hf_efficientnet(size: Size) -> ZooModel:
    small = {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320}
    config = transformers.EfficientNetConfig(**(small if size == "small" else {"width_coefficient": 1.0}))
    return _image(transformers.EfficientNetForImageClassification(config), *_pixels(size, 64))


class DenseNet(nn.Module):
    """Every layer sees all before it, concatenated."""

    def __init__(self, layers: int, growth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, growth, 3, 2, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(growth * (i + 1)) for i in range(layers))
        self.convs = nn.ModuleList(nn.Conv2d(growth * (i + 1), growth, 3, padding=1) for i in range(layers))
        self.head = nn.Linear(growth * (layers + 1), 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = [self.stem(image)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(functional.relu(norm(torch.cat(features, 1)))))
        pooled = functional.adaptive_avg_pool2d(functional.avg_pool2d(torch.cat(features, 1), 2), 1)
        return functional.log_softmax(self.head(pooled.flatten(1)), dim=-1)


class UNet(nn.Module):
    """Down with strided convolutions and GroupNorm, up with transposed convolutions and nearest resize."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(2, width), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width), nn.LeakyReLU(0.1))
        self.deep = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, 2, 1), nn.PReLU(), nn.Dropout2d())
        self.up = nn.ConvTranspose2d(2 * width, 2 * width, 4, 2, 1)
        self.last = nn.Conv2d(5 * width, 4, 1)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        first = self.first(image)
        down = self.down(first)
        up = torch.cat([self.up(self.deep(down)), down], 1)
        up = functional.interpolate(up, scale_factor=2.0, mode="nearest")
        logits = self.last(torch.cat([up, first], 1))
        small = functional.interpolate(logits, size=(9, 9), mode="bilinear", align_corners=False)
        return {"logits": logits, "small": small, "classes": logits.argmax(1)}


def densenet(size: Size) -> ZooModel:
    module = DenseNet(4, 8) if size == "small" else DenseNet(24, 32)
    return ZooModel(module, (torch.randn(2, 3, 32, 32),))


def unet(size: Size) -> ZooModel:
    """Returns a dict."""
    pixels = 32 if size == "small" else 256
    return ZooModel(UNet(8 if size == "small" else 64), (torch.randn(1, 3, pixels, pixels),))
