"""Recurrent nets, and the Transformer that torch ships."""

from __future__ import annotations

import torch
from torch import nn

from tests.zoo import Size, ZooModel


class Recurrent(nn.Module):
    """ids[batch, seq] -> (logits[batch, classes], states[batch, seq, hidden]) through a recurrent layer."""

    def __init__(self, layer: type[nn.RNNBase], size: Size, bidirectional: bool = False) -> None:
        super().__init__()
        vocab, width, hidden, layers = (1000, 128, 256, 2) if size == "full" else (50, 12, 16, 2)
        self.embed = nn.Embedding(vocab, width)
        self.rnn = layer(width, hidden, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(hidden * (2 if bidirectional else 1), 10)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states, _ = self.rnn(self.embed(ids))
        return self.head(states[:, -1]), states


def _model(layer: type[nn.RNNBase], size: Size, bidirectional: bool = False) -> ZooModel:
    ids = torch.randint(0, 50, (1, 64) if size == "full" else (2, 7))
    dim = torch.export.Dim("batch", min=1, max=16)
    return ZooModel(Recurrent(layer, size, bidirectional), (ids,), dynamic={"ids": {0: dim}})


def lstm(size: Size) -> ZooModel:
    """Embedding, two LSTM layers, linear."""
    return _model(nn.LSTM, size)


def gru(size: Size) -> ZooModel:
    """Embedding, two GRU layers, linear."""
    return _model(nn.GRU, size)


def bilstm(size: Size) -> ZooModel:
    """Both directions."""
    return _model(nn.LSTM, size, bidirectional=True)


def torch_transformer(size: Size) -> ZooModel:
    """nn.TransformerEncoder and its decoder with a causal mask."""
    width, heads = (512, 8) if size == "full" else (32, 4)
    module = nn.Transformer(width, heads, 2, 2, width * 2, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    kwargs = {"src": torch.randn(2, 9, width), "tgt": torch.randn(2, 6, width), "tgt_mask": mask, "tgt_is_causal": True}
    return ZooModel(module, kwargs=kwargs)
