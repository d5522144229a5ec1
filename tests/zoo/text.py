"""Text models of transformers: encoders and decoders, with ModelOutput outputs and flags as inputs."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.zoo import Size, ZooModel


def tokens(module: torch.nn.Module, size: Size, *, mask: bool = True, batch: int = 2, **kwargs: Any) -> ZooModel:
    """Random ids[batch, sequence] and a mask whose second row is padded at its end; `kwargs` are flags."""
    length = 128 if size == "full" else 12
    rows = 1 if size == "full" else batch
    named: dict[str, Any] = {"input_ids": torch.randint(5, module.config.vocab_size, (rows, length))}
    if mask:
        named["attention_mask"] = torch.ones(rows, length, dtype=torch.int64)
        named["attention_mask"][1:, -3:] = 0
    batch_dim = torch.export.Dim("batch", min=1, max=16)
    seq_dim = torch.export.Dim("seq", min=2, max=64 if size == "small" else 512)
    dynamic: dict[str, Any] = {name: {0: batch_dim, 1: seq_dim} for name in named}
    return ZooModel(module, kwargs=named | kwargs, dynamic=dynamic | dict.fromkeys(kwargs))


def bert(size: Size) -> ZooModel:
    """BERT-base at full size (110 M weights)."""
    config = transformers.BertConfig()
    if size == "small":
        config = transformers.BertConfig(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
            initializer_range=0.2,
        )
    return tokens(transformers.BertModel(config), size)


def distilbert(size: Size) -> ZooModel:
    """DistilBERT with its classification head."""
    config = transformers.DistilBertConfig()
    if size == "small":
        config = transformers.DistilBertConfig(
            vocab_size=99,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=64,
            max_position_embeddings=64,
            initializer_range=0.2,
        )
    return tokens(transformers.DistilBertForSequenceClassification(config), size)


def t5_encoder(size: Size) -> ZooModel:
    """T5-small's encoder at full size: RMS norm and relative position buckets."""
    config = transformers.T5Config()
    if size == "small":
        config = transformers.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return tokens(transformers.T5EncoderModel(config), size)


def gpt2(size: Size) -> ZooModel:
    """GPT-2 with its head; `use_cache=False` is an input that is not a tensor."""
    config = transformers.GPT2Config()
    if size == "small":
        config = transformers.GPT2Config(
            vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2
        )
    return tokens(transformers.GPT2LMHeadModel(config), size, use_cache=False)


def llama(size: Size) -> ZooModel:
    """Two Llama layers: RMS norm, rotary embedding, grouped-query attention, SwiGLU."""
    full = size == "full"
    config = transformers.LlamaConfig(
        vocab_size=32000 if full else 99,
        hidden_size=2048 if full else 32,
        intermediate_size=5632 if full else 64,
        num_hidden_layers=2,
        num_attention_heads=32 if full else 4,
        num_key_value_heads=8 if full else 2,
        max_position_embeddings=2048 if full else 64,
        use_cache=False,
        initializer_range=0.02 if full else 0.2,
    )
    return tokens(transformers.LlamaForCausalLM(config), size)
