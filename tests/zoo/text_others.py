"""Text models that the service does not list by name."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.zoo import Size, ZooModel
from tests.zoo.text import tokens

_BERT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 80,
    "initializer_range": 0.2,
}
_DECODER = _BERT | {"num_key_value_heads": 2, "use_cache": False}


def _small(size: Size, settings: dict[str, Any]) -> dict[str, Any]:
    return settings if size == "small" else {}


def roberta(size: Size) -> ZooModel:
    """Positions come from a cumulative sum over the mask of ids."""
    return tokens(transformers.RobertaModel(transformers.RobertaConfig(**_small(size, _BERT))), size)


def electra(size: Size) -> ZooModel:
    config = transformers.ElectraConfig(**_small(size, _BERT | {"embedding_size": 16}))
    return tokens(transformers.ElectraForTokenClassification(config), size)


def albert(size: Size) -> ZooModel:
    config = transformers.AlbertConfig(**_small(size, _BERT | {"embedding_size": 16}))
    return tokens(transformers.AlbertModel(config), size)


def deberta_v2(size: Size) -> ZooModel:
    """Disentangled attention: gathers over relative positions."""
    extra = {
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 8,
        "max_relative_positions": 16,
    }
    return tokens(transformers.DebertaV2Model(transformers.DebertaV2Config(**_small(size, _BERT | extra))), size)


def mistral(size: Size) -> ZooModel:
    """A sliding window in its mask."""
    config = transformers.MistralConfig(**_small(size, _DECODER | {"sliding_window": 4}))
    return tokens(transformers.MistralForCausalLM(config), size)


def qwen2(size: Size) -> ZooModel:
    return tokens(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_small(size, _DECODER))), size)


def qwen3(size: Size) -> ZooModel:
    config = transformers.Qwen3Config(**_small(size, _DECODER | {"head_dim": 16}))
    return tokens(transformers.Qwen3ForCausalLM(config), size)


def gemma(size: Size) -> ZooModel:
    config = transformers.GemmaConfig(**_small(size, _DECODER | {"head_dim": 16}))
    return tokens(transformers.GemmaForCausalLM(config), size)


def phi(size: Size) -> ZooModel:
    """Rotary embedding of a part of each head."""
    return tokens(transformers.PhiForCausalLM(transformers.PhiConfig(**_small(size, _DECODER))), size)


def gpt_neox(size: Size) -> ZooModel:
    config = transformers.GPTNeoXConfig(**_small(size, _BERT | {"use_cache": False}))
    return tokens(transformers.GPTNeoXForCausalLM(config), size)


def opt(size: Size) -> ZooModel:
    small = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64}
    small |= {"max_position_embeddings": 80, "word_embed_proj_dim": 32}
    config = transformers.OPTConfig(**_small(size, small), use_cache=False)
    return tokens(transformers.OPTForCausalLM(config), size)


def bloom(size: Size) -> ZooModel:
    """ALiBi position biases."""
    config = transformers.BloomConfig(
        **_small(size, {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}), use_cache=False
    )
    return tokens(transformers.BloomForCausalLM(config), size)


def bart_encoder(size: Size) -> ZooModel:
    small = {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64}
    config = transformers.BartConfig(**_small(size, small | {"max_position_embeddings": 80}))
    return tokens(transformers.BartModel(config).encoder, size)


def t5(size: Size) -> ZooModel:
    """Encoder and decoder with cross attention."""
    small = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(**_small(size, small), use_cache=False)
    model = transformers.T5ForConditionalGeneration(config)
    encoder = tokens(model, size)
    decoder_ids = torch.randint(5, config.vocab_size, (encoder.kwargs["input_ids"].shape[0], 6))
    return ZooModel(model, kwargs=encoder.kwargs | {"decoder_input_ids": decoder_ids, "use_cache": False})


def clip_text(size: Size) -> ZooModel:
    """Pools at the end-of-text token, found by argmax."""
    small = {k: v for k, v in _BERT.items() if k != "initializer_range"}
    config = transformers.CLIPTextConfig(**_small(size, small | {"eos_token_id": 98, "projection_dim": 24}))
    return tokens(transformers.CLIPTextModelWithProjection(config), size)
