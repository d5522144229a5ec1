"""Vision models of transformers, which return ModelOutput classes."""

from __future__ import annotations

import torch
import transformers

from tests.zoo import Size, ZooModel


def _image(module: torch.nn.Module, pixels: int, batch: int) -> ZooModel:
    dim = torch.export.Dim("batch", min=1, max=64)
    return ZooModel(
        module, kwargs={"pixel_values": torch.randn(batch, 3, pixels, pixels)}, dynamic={"pixel_values": {0: dim}}
    )


def convnext(size: Size) -> ZooModel:
    """ConvNeXt-T at full size, with its classifier."""
    if size == "full":
        return _image(transformers.ConvNextForImageClassification(transformers.ConvNextConfig(num_labels=1000)), 224, 1)
    config = transformers.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], layer_scale_init_value=0.5)
    return _image(transformers.ConvNextForImageClassification(config), 64, 2)


def vit(size: Size) -> ZooModel:
    """ViT-B/16 at full size."""
    if size == "full":
        return _image(transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)), 224, 1)
    config = transformers.ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=96,
        image_size=32,
        patch_size=8,
        initializer_range=0.2,
    )
    return _image(transformers.ViTModel(config), 32, 2)


def swin(size: Size) -> ZooModel:
    """Swin-T at full size: shifted windows, so roll, window partition and masks."""
    if size == "full":
        return _image(transformers.SwinForImageClassification(transformers.SwinConfig(num_labels=1000)), 224, 1)
    config = transformers.SwinConfig(
        image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, initializer_range=0.2
    )
    return _image(transformers.SwinModel(config), 64, 2)
