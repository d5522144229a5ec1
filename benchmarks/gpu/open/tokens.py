"""Blocks over rows of tokens: attentions, MLPs, recurrent cells and convolutions along the tokens."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.open.norms import GlobalResponse, activation, norm_of_rows

__all__ = ["Summary", "token_block"]


class _Attention(nn.Module):
    """Multi-head attention of a kind: with fewer heads of keys, causal, with a bias of places, linear, windowed."""

    def __init__(self, chance: random.Random, width: int, tokens: int) -> None:
        super().__init__()
        self.head = chance.choice((32, 64, 64))
        self.heads = width // self.head
        self.shared = chance.choice([s for s in (1, 1, 2, 4) if self.heads % s == 0])
        self.kind = chance.choice(("full", "full", "causal", "biased", "linear", "window", "rotary", "by_hand"))
        few = self.heads // self.shared
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * few * self.head)
        self.out, self.few = nn.Linear(width, width), few
        if self.kind == "biased":
            self.bias = nn.Parameter(torch.zeros(self.heads, tokens, tokens))
        if self.kind == "rotary":
            turns = torch.arange(tokens).float()[:, None] * 10000 ** (
                -torch.arange(0, self.head, 2).float() / self.head
            )
            self.register_buffer("cos", turns.cos().repeat(1, 2))
            self.register_buffer("sin", turns.sin().repeat(1, 2))

    def _turned(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return x * self.cos + torch.cat([-high, low], -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        window = 49 if self.kind == "window" and tokens % 49 == 0 else tokens
        x = x.reshape(-1, window, width)
        q = self.q(x).unflatten(-1, (self.heads, self.head)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.few, self.head)).movedim(-2, 1).unbind(-2)
        k, v = (each.repeat_interleave(self.shared, 1) if self.shared > 1 else each for each in (k, v))
        if self.kind == "linear":
            y = functional.elu(q) + 1, functional.elu(k) + 1
            z = (
                (y[0] @ (y[1].transpose(-1, -2) @ v))
                / (y[0] * y[1].mean(2, keepdim=True)).sum(-1, keepdim=True).clamp_min(1e-2)
                / tokens
            )
        elif self.kind == "by_hand":
            z = ((q * self.head**-0.5) @ k.transpose(-1, -2)).softmax(-1) @ v
        else:
            if self.kind == "rotary":
                q, k = self._turned(q), self._turned(k)
            bias = self.bias if self.kind == "biased" else None
            z = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=self.kind == "causal")
        return self.out(z.transpose(1, 2).flatten(2)).reshape(batch, tokens, width)


class _Mlp(nn.Module):
    """Two products, plain or gated, with a GRN at times."""

    def __init__(self, chance: random.Random, width: int) -> None:
        super().__init__()
        wide = chance.choice((2, 3, 4)) * width
        self.gated = chance.random() < 0.5
        self.up, self.down = nn.Linear(width, wide * (1 + self.gated)), nn.Linear(wide, width)
        self.act = activation(chance)
        self.norm = GlobalResponse(wide) if chance.random() < 0.2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        if self.gated:
            gate, y = y.chunk(2, -1)
            return self.down(self.norm(self.act(gate) * y))
        return self.down(self.norm(self.act(y)))


class _Along(nn.Module):
    """Conformer's convolution along the tokens: GLU, depthwise, a batch norm."""

    def __init__(self, chance: random.Random, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        kernel, groups = chance.choice(((31, width), (15, width), (9, 16), (4, 1)))
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=groups)
        self.norm = nn.BatchNorm1d(width) if chance.random() < 0.5 else nn.GroupNorm(chance.choice((1, 8)), width)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.glu(self.up(x.transpose(1, 2)), 1)
        y = functional.silu(self.norm(self.conv(y)[..., : x.shape[1]]))
        return self.down(y).transpose(1, 2)


class _Cell(nn.Module):
    """A recurrent layer over the first tokens, whose state joins all."""

    def __init__(self, chance: random.Random, width: int) -> None:
        super().__init__()
        kind = chance.choice((nn.GRUCell, nn.LSTMCell))
        self.low, self.cell, self.back = nn.Linear(width, 128), kind(128, 128), nn.Linear(128, width)
        self.steps = chance.choice((2, 4, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.low(x[:, : self.steps])
        state = None
        for step in range(self.steps):
            state = self.cell(y[:, step], state)
        last = state[0] if isinstance(state, tuple) else state
        return self.back(last)[:, None]


class _PreNorm(nn.Module):
    def __init__(self, norm: nn.Module, body: nn.Module, *, behind: bool) -> None:
        super().__init__()
        self.norm, self.body, self.behind = norm, body, behind

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.body(x)) if self.behind else x + self.body(self.norm(x))


def token_block(chance: random.Random, width: int, tokens: int) -> nn.Module:
    """Return a block that keeps tokens and width."""
    kinds = ("attention",) * 4 + ("along", "cell", "mlp")
    behind = chance.random() < 0.3
    made = {
        "attention": lambda: _Attention(chance, width, tokens),
        "along": lambda: _Along(chance, width),
        "cell": lambda: _Cell(chance, width),
        "mlp": lambda: _Mlp(chance, width),
    }
    mixer = made[chance.choice(kinds)]()
    return nn.Sequential(
        _PreNorm(norm_of_rows(chance, width), mixer, behind=behind),
        _PreNorm(norm_of_rows(chance, width), _Mlp(chance, width), behind=behind),
    )


class Summary(nn.Module):
    """The end of a network over tokens: all rows, one weighted by a softmax, or probabilities of many words."""

    def __init__(self, chance: random.Random, width: int) -> None:
        super().__init__()
        self.kind = chance.choice(("rows", "weighted", "words", "best"))
        self.norm = norm_of_rows(chance, width)
        words = (
            chance.choice((10_003, 32_000, 50_257)) if self.kind in ("words", "best") else chance.choice((2, 19, 1000))
        )
        self.head, self.score = nn.Linear(width, words), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is asked of the tokens."""
        x = self.norm(x)
        if self.kind == "rows":
            return self.head(x)
        if self.kind == "weighted":
            return self.head((x * self.score(x).softmax(1)).sum(1))
        found = self.head(x[:, -1]).softmax(-1)
        return found if self.kind == "words" else found.amax(-1)
