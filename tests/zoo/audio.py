"""Audio models of transformers."""

from __future__ import annotations

import torch
import transformers

from tests.zoo import Size, ZooModel


def whisper_encoder(size: Size) -> ZooModel:
    """Whisper-tiny's encoder at full size: two convolutions over time, then attention."""
    if size == "full":
        config = transformers.WhisperConfig()
    else:
        config = transformers.WhisperConfig(
            d_model=32,
            encoder_layers=2,
            encoder_attention_heads=4,
            encoder_ffn_dim=64,
            max_source_positions=30,
            num_mel_bins=16,
        )
    features = torch.randn(1 if size == "full" else 2, config.num_mel_bins, 2 * config.max_source_positions)
    module = transformers.models.whisper.modeling_whisper.WhisperEncoder(config)
    dim = torch.export.Dim("batch", min=1, max=16)
    return ZooModel(module, kwargs={"input_features": features}, dynamic={"input_features": {0: dim}})


def wav2vec2(size: Size) -> ZooModel:
    """wav2vec 2.0: strided convolutions over samples with GroupNorm, a convolutional position embedding."""
    config = transformers.Wav2Vec2Config()
    if size == "small":
        config = transformers.Wav2Vec2Config(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            conv_dim=(16, 16, 16),
            conv_stride=(5, 2, 2),
            conv_kernel=(10, 3, 2),
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=4,
        )
    module = transformers.Wav2Vec2Model(config)
    return ZooModel(module, kwargs={"input_values": torch.randn(2, 800 if size == "small" else 16000)})
