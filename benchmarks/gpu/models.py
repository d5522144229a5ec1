"""The models that are timed on a GPU: fp16 modules with seeded weights, the same here and on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["MODELS", "fingerprint", "model_of", "other_inputs", "small_bert"]

_TOKENS = 512
_CACHED = 512
"""Keys and values that one step of decoding finds in the cache."""


def model_of(name: str, batch: int, layers: int | None = None) -> tuple[Any, tuple[Any, ...]]:
    """Return the module in fp16 on the CPU and its inputs; `layers` fewer than it has, to try things out."""
    import torch

    model = MODELS[name](layers)
    _fill(model)
    return model.half().eval().requires_grad_(False), _inputs(name, batch, torch.Generator().manual_seed(1), layers)


def other_inputs(name: str, batch: int, seed: int, layers: int | None = None) -> tuple[Any, ...]:
    """Return inputs of the same shapes drawn from `seed`."""
    import torch

    return _inputs(name, batch, torch.Generator().manual_seed(1000 + seed), layers)


def fingerprint(model: Any) -> dict[str, float]:
    """Return a number for each tensor of the module, by which two machines see that theirs are the same."""
    return {name: float(value.double().abs().sum()) for name, value in sorted(model.state_dict().items())}


def _fill(model: Any) -> None:
    """Draw every weight by its name: neither the order of initialization nor the library's version matters."""
    import torch

    for name, value in sorted(model.state_dict().items()):
        if not value.is_floating_point():
            continue
        draw = torch.randn(value.shape, generator=torch.Generator().manual_seed(_seed(name)))
        if name.endswith("running_var"):
            new = 1 + 0.2 * draw.clamp(-2, 2)
        elif value.dim() == 1:
            new = 0.1 * draw + (1.0 if name.endswith("weight") else 0.0)
        elif value.dim() == 4:
            new = draw * (2 / value[0].numel()) ** 0.5
        else:
            new = 0.03 * draw
        value.copy_(new)


def _seed(name: str) -> int:
    return sum((index + 1) * byte for index, byte in enumerate(name.encode())) % (1 << 31)


def _inputs(name: str, batch: int, draw: Any, layers: int | None) -> tuple[Any, ...]:
    import torch

    def ids(tokens: int) -> Any:
        return torch.randint(5, 30000, (batch, tokens), generator=draw)

    def low(*shape: int) -> Any:
        return torch.randn(batch, *shape, generator=draw).half()

    if name == "bert":
        mask = torch.ones(batch, 128, dtype=torch.int64)
        for row in range(1, batch):
            mask[row, 128 - (row * 37) % 100 :] = 0
        return ids(128), mask
    if name == "gpt2_decode":
        return (ids(1), *(low(12, _CACHED, 64) for _ in range(2 * (layers or 12))))
    if name == "unet_block":
        return low(320, 32, 32), low(1280), low(77, 768)
    tokens = {"bert_unmasked": 128, "gpt2": _TOKENS, "llama": _TOKENS}
    return (ids(tokens[name]),) if name in tokens else (low(3, 224, 224),)


def _first_of(model: Any, masked: bool = False) -> Any:
    """The model with its last hidden state as the one result."""
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any, mask: Any = None) -> Any:
            return self.model(x, attention_mask=mask)[0] if masked else self.model(x)[0]

    return First()


def _bert(layers: int | None) -> Any:
    import transformers

    config = transformers.BertConfig(**({"num_hidden_layers": layers} if layers else {}))
    return _first_of(transformers.BertModel(config, add_pooling_layer=False), masked=True)


def _bert_unmasked(layers: int | None) -> Any:
    import transformers

    # Under torch.compile it makes a mask of ones, with which torch computes attention in fp32 products.
    transformers.models.bert.modeling_bert.create_bidirectional_mask = lambda *_, **__: None
    config = transformers.BertConfig(**({"num_hidden_layers": layers} if layers else {}))
    return _first_of(transformers.BertModel(config, add_pooling_layer=False))


def small_bert() -> Any:
    """Return one of two layers and width 256 in fp32, for numbers that are carried."""
    import transformers

    transformers.models.bert.modeling_bert.create_bidirectional_mask = lambda *_, **__: None
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024
    )
    model = _first_of(transformers.BertModel(config, add_pooling_layer=False))
    _fill(model)
    return model.requires_grad_(False)


def _vit(layers: int | None) -> Any:
    import transformers

    config = transformers.ViTConfig(**({"num_hidden_layers": layers} if layers else {}))
    return _first_of(transformers.ViTModel(config, add_pooling_layer=False))


def _gpt2(layers: int | None) -> Any:
    import transformers

    return _first_of(transformers.GPT2Model(transformers.GPT2Config(use_cache=False, n_layer=layers or 12)))


def _gpt2_decode(layers: int | None) -> Any:
    """One token after the cached ones: its hidden state, and its key and value of each layer."""
    import torch
    import transformers

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.GPT2Model(transformers.GPT2Config(n_layer=layers or 12))

        def forward(self, x: Any, *past: Any) -> Any:
            cache = transformers.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
            position = torch.full_like(x, past[0].shape[2])
            found = self.model(x, past_key_values=cache, position_ids=position, use_cache=True)
            new = [each[:, :, -1:] for layer in found[1].layers for each in (layer.keys, layer.values)]
            return found[0], *new

    return Step()


def _llama(layers: int | None) -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=layers or 8,
        num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=2048, use_cache=False,
    )  # fmt: skip
    return _first_of(transformers.LlamaModel(config))


def _unet_block(layers: int | None) -> Any:
    from benchmarks.gpu.unet import DownBlock

    return DownBlock(320, 640, time=1280, context=768, heads=8, pairs=layers or 2)


def _zoo(name: str) -> Callable[[int | None], Any]:
    def make(layers: int | None) -> Any:
        from tests import zoo

        return zoo.build(name, size="full").module

    return make


MODELS: dict[str, Callable[[int | None], Any]] = {
    "bert": _bert,
    "bert_unmasked": _bert_unmasked,
    "vit": _vit,
    "gpt2": _gpt2,
    "gpt2_decode": _gpt2_decode,
    "llama": _llama,
    "unet_block": _unet_block,
    "resnet50": _zoo("resnet50"),
    "mobilenet_v2": _zoo("mobilenet_v2"),
}
