"""Converters against torch, a family at a time: each test is one module with many results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from relaxc.service.errors import InputShape, UnsupportedModel
from relaxc.service.frontend.pt2 import frontend as exported_program
from relaxc.service.frontend.pt2.ops import CONVERTERS
from relaxc.service.runtime.dims import bind
from tests.frontend.pt2.support import arrays_of, by_every_stage, check, export

Tensors = tuple[torch.Tensor, ...]


class Module(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _compare(tmp_path: Path, function: Callable[..., Any], *args: Any, dynamic: Any = None, more: Any = ()) -> Any:
    module = function if isinstance(function, nn.Module) else Module(function)
    shapes = {"args": dynamic} if dynamic and not isinstance(function, nn.Module) else dynamic
    path = export(tmp_path / "m.pt2", module, *args, dynamic=shapes)
    return check(path, arrays_of(*args), *(arrays_of(*case) for case in more))


def _unary(x: torch.Tensor) -> Tensors:
    y = x.abs() + 0.1
    return (
        *(f(x) for f in (torch.abs, torch.ceil, torch.floor, torch.sign, torch.trunc, torch.neg, torch.exp, torch.erf)),
        *(f(x) for f in (torch.sin, torch.cos, torch.atan, torch.asinh, torch.sinh, torch.tanh, torch.sigmoid)),
        *(f(y) for f in (torch.log, torch.log2, torch.log10, torch.log1p, torch.sqrt, torch.rsqrt, torch.reciprocal)),
        torch.round(x * 2) / 2,
        torch.round(torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997])),
        torch.expm1(x * 1e-4),
        torch.log1p(x * 1e-4),
        torch.isnan(x / x),
        torch.isinf(1 / x),
        torch.isfinite(x),
    )


def _arithmetic(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> Tensors:
    return (
        torch.add(x, y, alpha=2),
        torch.sub(x, y, alpha=0.5),
        torch.rsub(x, 3),
        *(x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")),
        *(i // j, i % j, torch.fmod(i, j), torch.div(i, j, rounding_mode="trunc"), i / j, i * 2.5, i + True),
        *(x**2, x**3, x.abs() ** 0.5, x.abs() ** 1.7, 2.0**x, x ** i.abs(), i**2, i ** (j % 5), i**3),
        *(torch.maximum(x, y), torch.minimum(i, j), torch.atan2(x, y), x > y, i >= 2, x == x.round(), i != j),
        *((x > 0) & (y > 0), (x > 0) | (y > 0), (x > 0) ^ (y > 0), ~(x > 0), ~i, i & j, (x > 0) == (y > 0)),
        *(torch.where(x > 0, x, 0.0), x.masked_fill(y > 0, -1e9), torch.logical_and(x, i), (x > 0) + (y > 0)),
        torch.addcmul(x, y, y, value=0.3),
        torch.lerp(x, y, 0.3),
    )


# fmt: off
_ACTIVATIONS = (
    "relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign", "hardswish",
    "hardsigmoid", "hardtanh", "leaky_relu",
)
# fmt: on


def _activations(x: torch.Tensor) -> Tensors:
    return (
        *(getattr(F, name)(x) for name in _ACTIVATIONS),
        F.gelu(x, approximate="tanh"),
        F.logsigmoid(x),
        F.softmax(x, dim=0),
        F.log_softmax(x, dim=0),
        F.log_softmax(x, dim=-1),
        F.glu(x, dim=-1),
        F.prelu(x, torch.tensor([0.1, 0.2, 0.3, 0.4])),
        x.clamp(-0.5),
        x.clamp(max=torch.zeros(4)),
        F.threshold(x, 0.1, 20),
        torch.logsumexp(x, 1),
    )


def _reductions(x: torch.Tensor, i: torch.Tensor) -> Tensors:
    return (
        *(x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.mean(-1), x.prod(1), i.sum(), i.float().mean()),
        *(x.amax((0, 1)), x.amin(2, keepdim=True), *x.max(1), *x.min(-1, keepdim=True), x.max(), i.min()),
        *(x.argmax(), x.argmax(1), x.argmin(0, keepdim=True), (x > 0).any(), (x > 0).all(1), (x > 0).sum(2)),
        *(x.var(1), x.std((0, 2)), x.var(1, correction=0), *torch.var_mean(x, 2)),
        *(x.norm(), x.norm(p=1, dim=1), torch.linalg.vector_norm(x, float("inf"), 2), F.normalize(x, dim=-1)),
        *(x.cumsum(1), i.cumsum(0), x.cumprod(2), (x > 0).cumsum(1)),
    )


def _shapes(x: torch.Tensor) -> Tensors:
    return (
        *(x.view(4, -1), x.flatten(1), x.unsqueeze(-1).squeeze(-1), x.permute(2, 0, 1), x.transpose(0, 2), x.mT),
        *(x[1:], x[:, -2:], x[..., ::2], x[:, 1], x[:, -1, 2], x[None], x.narrow(2, 1, 2)),
        *(*x.split(2, 1), *x.chunk(3, 2), *x.unbind(1), torch.cat([x, x * 2], 2), torch.stack([x, x], 1)),
        *(x.repeat(2, 1, 3), x.expand(3, *x.shape), torch.tile(x, (2, 2)), x.flip(0, 2), x.roll((1, -2), (0, 2))),
        *(x.roll(3), F.pad(x, (1, 2, 0, 1)), F.pad(x, (-1, 1), value=7.0), F.pad(x, (1, 1), mode="reflect")),
        *(F.pad(x, (2, 1), mode="replicate"), F.pad(x, (1, 1), mode="circular"), x.unfold(2, 3, 1)),
        *(x.tril(), x.triu(1), torch.diagonal(x, 1, 0, 2), x.movedim(0, 2), x.repeat_interleave(2, dim=1)),
        *(
            torch.as_strided(x, (2, 3), (4, 1)),
            torch.as_strided(x, (3, 3), (1, 1)),
            *torch.meshgrid(x[0, 0], x[0, 1], indexing="ij"),
        ),
        F.pixel_shuffle(x.reshape(1, 4, 3, 4)[:, :, :, :3], 2),
        F.unfold(x[:, :, None].reshape(1, 2, 6, 4), 3, padding=1),
    )


def _indexing(x: torch.Tensor, i: torch.Tensor, mask: torch.Tensor) -> Tensors:
    put = x.clone()
    put[i] = 1.0
    put[:, i[:2]] = 2.0
    put[mask] = 7.0
    put[1:2] = 3.0
    put[..., ::2] = -1.0
    scattered = torch.zeros_like(x).scatter_add(1, i.abs()[None, :, None].expand(2, 3, 4), x[:2])
    return (
        *(x[i], x[:, i], x[i, i], x[i, :, i], x[..., None, :], x[[0, -1]], x[i][:, i], x[:, [0, 2], [1, 3]]),
        *(x.index_select(1, i.abs()), x.gather(1, i.abs()[None, :, None].expand(3, 3, 4)), torch.take(x, i.abs())),
        *(put, x.index_put((i, i), torch.ones(()), accumulate=True), scattered),
        *(x.scatter(0, i.abs()[None, :, None].expand(1, 3, 4), 5.0), *x.sort(1), *x.topk(2, -1), x.argsort(0)),
        *(*x.sort(dim=1, stable=True), *x.sort(dim=0, descending=True, stable=True), x.argsort(dim=2, stable=True)),
        torch.scatter_reduce(x, 0, i.abs()[None, :, None].expand(1, 3, 4), x, "amax"),
        x.select_scatter(torch.zeros(3, 4), 1, -1),
        F.one_hot(i.abs(), 5),
        x.masked_scatter(x > 0, x.flatten() * 2),
        x.masked_scatter(x[:1] > 0, x.flatten()[:-1]),
        x.diagonal(0, 0, 1),
    )


def _creation(x: torch.Tensor) -> Tensors:
    return (
        *(torch.zeros(2, 3) + x.sum(), torch.full((3,), 2.5), torch.arange(5), torch.arange(0.1, 1, 0.3)),
        *(torch.linspace(0, 1, 7), torch.eye(3), torch.ones_like(x), torch.full_like(x, 3), x.new_zeros(2)),
        *(torch.tensor(4.0) * x, torch.arange(x.shape[0]).to(x.dtype), torch.tril(torch.ones(3, 3)), torch.empty(0)),
    )


def test_unary(tmp_path: Path) -> None:
    _compare(tmp_path, _unary, torch.cat([_randn(3, 4), torch.zeros(1, 4)]))


def test_arithmetic(tmp_path: Path) -> None:
    i = torch.tensor([[7, -7, 5, -5], [3, 2, -9, 8]])
    j = torch.tensor([[2, 2, -3, -3], [1, 5, 4, -8]])
    _compare(tmp_path, _arithmetic, _randn(2, 4) * 3, _randn(2, 4).T.reshape(2, 4) + 0.2, i, j)


@pytest.mark.sampled("dtype2")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_activations(dtype: torch.dtype, tmp_path: Path) -> None:
    if dtype is torch.float32:
        _compare(tmp_path, _activations, _randn(3, 4) * 3)
    else:
        _compare(tmp_path, lambda x: (F.gelu(x), F.softmax(x, 1), x * 0.1, x + 1e-3, F.silu(x)), _randn(3, 4).to(dtype))


def test_reductions(tmp_path: Path) -> None:
    _compare(tmp_path, _reductions, _randn(3, 4, 5), torch.arange(-3, 9).reshape(3, 4))


def test_reductions_of_halves_accumulate_in_float32(tmp_path: Path) -> None:
    x = torch.full((1, 4096), 1.0, dtype=torch.float16)
    _compare(tmp_path, lambda x: (x.sum(1) / 2, x.mean(1), x @ x.T, F.layer_norm(x, (4096,))), x)


def test_shapes(tmp_path: Path) -> None:
    _compare(tmp_path, _shapes, _randn(4, 3, 4))


def test_indexing(tmp_path: Path) -> None:
    _compare(tmp_path, _indexing, _randn(3, 3, 4), torch.tensor([0, -1, 2]), _randn(3, 3) > 0)


def test_creation(tmp_path: Path) -> None:
    _compare(tmp_path, _creation, _randn(3, 4))


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor, none: torch.Tensor) -> Tensors:
    attend = F.scaled_dot_product_attention
    return (
        *(attend(q, k, v), attend(q, k, v, is_causal=True), attend(q, k, v, attn_mask=m, scale=0.3)),
        *(attend(q, k, v, attn_mask=m.float() * -1e4), attend(q, k, v, attn_mask=none)),
        attend(q, k[:, :2], v[:, :2], enable_gqa=True),
        attend(q * 100, -k.abs() * 100, v, is_causal=True),
        attend(q[0], k[0], v[0]),
    )


def test_attention(tmp_path: Path) -> None:
    """A row whose mask keeps nothing gives zeros; large negative scores do not vanish."""
    mask, none = _randn(6, 10) > 0, torch.zeros(6, 10, dtype=torch.bool)
    _compare(tmp_path, _attention, _randn(2, 4, 6, 8), _randn(2, 4, 10, 8), _randn(2, 4, 10, 8) + 1, mask, none)


class Convolutions(nn.Module):
    """Convolutions in one to three dims, forward and transposed, and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv1d(4, 6, 3, padding="same", groups=2, padding_mode="circular")
        self.two = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
        self.three = nn.Conv3d(4, 2, 2, bias=False)
        self.up = nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, groups=2, dilation=2)
        self.up_one = nn.ConvTranspose1d(4, 2, 3, 2)

    def forward(self, x: torch.Tensor) -> Tensors:
        pools = (
            F.max_pool2d(x, 3, 2, 1),
            F.max_pool2d(x, 2, ceil_mode=True),
            F.max_pool2d(x, 3, 2, ceil_mode=True, dilation=2),
            F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool2d(x, 2, divisor_override=3),
            F.adaptive_avg_pool2d(x, (3, 2)),
            F.adaptive_max_pool2d(x, (3, 2)),
            F.max_pool1d(x[0], 3, 2),
            F.lp_pool2d(x.abs(), 2, 3),
        )
        rows = x[:, :, 0]
        cubes = x[:, :, None].expand(-1, -1, 3, -1, -1)
        return self.one(rows), self.up_one(rows), self.two(x), self.three(cubes), self.up(x), *pools


def test_convolutions_and_pools(tmp_path: Path) -> None:
    _compare(tmp_path, Convolutions(), _randn(2, 4, 7, 8))


def _resizes(x: torch.Tensor, grid: torch.Tensor) -> Tensors:
    sizes = [F.interpolate(x, size=(7, 9), mode=mode) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")]
    factors = [F.interpolate(x, scale_factor=1.7, mode=mode) for mode in ("nearest", "bilinear", "bicubic", "area")]
    return (
        *sizes,
        *factors,
        F.interpolate(x, scale_factor=2.0, mode="nearest"),
        F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True),
        F.interpolate(x, size=(3, 3), mode="bilinear", antialias=True),
        F.interpolate(x, size=(3, 9), mode="bicubic", antialias=True),
        F.grid_sample(x, grid, align_corners=False),
        F.grid_sample(x, grid, align_corners=True, padding_mode="border"),
    )


@pytest.mark.slow
def test_resizes(tmp_path: Path) -> None:
    _compare(tmp_path, _resizes, _randn(1, 2, 5, 6), torch.tanh(_randn(1, 3, 3, 2)))


class Norms(nn.Module):
    """Every normalization, with and without weights."""

    def __init__(self) -> None:
        super().__init__()
        batch = [nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.GroupNorm(2, 4)]
        instance = [nn.InstanceNorm2d(4, affine=True), nn.InstanceNorm2d(4), nn.LayerNorm(6)]
        layer = [nn.LayerNorm((5, 6), elementwise_affine=False), nn.RMSNorm(6)]
        rest = [nn.RMSNorm(6, eps=1e-3, elementwise_affine=False), nn.LocalResponseNorm(2)]
        self.layers = nn.ModuleList([*batch, *instance, *layer, *rest])
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: torch.Tensor) -> Tensors:
        return tuple(layer(x) for layer in self.layers)


@pytest.mark.sampled("dtype1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_norms(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Norms().to(dtype)
    if dtype is torch.float16:
        del module.layers[-1]  # it squares in 16 bits, where torch's own result is far off
    _compare(tmp_path, module, _randn(2, 4, 5, 6).to(dtype))


class Recurrents(nn.Module):
    """Recurrent layers with their states."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, 2, bidirectional=True)
        self.gru = nn.GRU(4, 3, batch_first=True, bias=False)
        self.rnn = nn.RNN(4, 3, nonlinearity="relu")
        self.cell = nn.LSTMCell(4, 3)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return self.lstm(x), self.gru(x), self.rnn(x, h), self.cell(x[0]), self.rnn(x[:, 0])


@pytest.mark.slow
def test_recurrents(tmp_path: Path) -> None:
    _compare(tmp_path, Recurrents(), _randn(4, 2, 4), _randn(1, 2, 3))


def _symbolic(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    n = x.shape[0]
    return (
        *(x.reshape(n, -1) @ torch.ones(8, 2), torch.cat([x, x], 0), x.sum(0), x.mean(0), y[1:], y.repeat(2), y[-1]),
        *(torch.arange(n), x.flatten(0, 1), y.view(-1, 2), x * n, torch.full((n,), 2), F.pad(x, (0, 0, 0, 0, 1, 0))),
        *(
            x.var(0, correction=0),
            x.softmax(0),
            x.cumsum(0),
            x[:, :, None].expand(n, 2, 3, 4),
            torch.zeros(n, n).tril(),
        ),
        F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
        x.argmax(0),
    )


def test_symbolic_sizes(tmp_path: Path) -> None:
    n = torch.export.Dim("n", min=2, max=8)
    more = [(_randn(4, 2, 4), _randn(8)), (_randn(2, 2, 4), _randn(4))]
    model = _compare(tmp_path, _symbolic, _randn(3, 2, 4), _randn(6), dynamic=({0: n}, {0: 2 * n}), more=more)
    assert [spec.shape for spec in model.signature.inputs] == [("s0", 2, 4), ("2*s0",)]


def test_attention_holds_calls_to_keys_as_long_as_values(tmp_path: Path) -> None:
    """No guard does: the export has three sizes of their own."""
    auto = torch.export.Dim.AUTO
    lengths = tuple({2: auto} for _ in range(3))
    path = export(
        tmp_path / "m.pt2",
        Module(F.scaled_dot_product_attention),
        *(_randn(1, 2, length, 8) for length in (5, 7, 7)),
        dynamic={"args": lengths},
    )
    model = check(path, arrays_of(*(_randn(1, 2, length, 8) for length in (3, 4, 4))))
    bind(model.signature, [(1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8)])
    for keys, values in ((5, 4), (4, 5)):
        with pytest.raises(InputShape, match="scaled_dot_product_attention"):
            bind(model.signature, [(1, 2, 3, 8), (1, 2, keys, 8), (1, 2, values, 8)])


@pytest.mark.parametrize(
    ("squeeze", "least"), [(lambda x: x, 1), (lambda x: x[..., None].squeeze(-1), 1), (lambda x: x.squeeze(0), 2)]
)
def test_a_batch_may_be_one_where_torch_only_assumes_more(tmp_path: Path, squeeze: Any, least: int) -> None:
    """torch writes 2 as the least of what `AUTO` and `DYNAMIC` find, and takes 1 all the same."""
    dynamic = torch.export.Dim.DYNAMIC

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return squeeze((x @ torch.ones(4, 2)).softmax(-1) + y.sum(1, keepdim=True))

    sizes = ({0: dynamic}, {0: dynamic, 1: dynamic})
    path = export(tmp_path / "m.pt2", Module(function), _randn(3, 4), _randn(3, 5), dynamic={"args": sizes})
    model = check(path, *(arrays_of(_randn(batch, 4), _randn(batch, 2)) for batch in (3, least)))
    assert [bounds.minimum for bounds in model.signature.bounds.values()] == [least, 2]


def _of_nothing(x: torch.Tensor) -> Tensors:
    return (
        *(x.any(), x.all(), x.any(0), x.all(0), x.any(0, keepdim=True), x.sum(), x.sum(0), (x > 0).sum()),
        *(x.prod(), x.prod(0), x.mean(), x.mean(0), x.norm(), x.any(1), x.sum(1)),
    )


def test_reductions_of_no_elements(tmp_path: Path) -> None:
    """Every rule of reductions is right for none: all of them are true, and none of them is."""
    n = torch.export.Dim("n", min=0, max=9)
    module = Module(_of_nothing)
    for name, given, sizes in (("any", torch.ones(5, 3), ({0: n},)), ("none", torch.ones(0, 3), None)):
        path = export(tmp_path / f"{name}.pt2", module, given, dynamic=None if sizes is None else {"args": sizes})
        run = by_every_stage(path)
        for x in [torch.ones(0, 3), *([torch.ones(5, 3), torch.zeros(1, 3)] if sizes else [])]:
            for got, want in zip(run(arrays_of(x)), _of_nothing(x), strict=True):
                np.testing.assert_array_equal(got, want.numpy())


def test_what_has_no_elements_is_no_constant_of_the_artifact(tmp_path: Path) -> None:
    """TVM writes such a constant, and cannot read the library."""

    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("none", torch.zeros(2, 0))

        def forward(self, x: torch.Tensor) -> Tensors:
            beside = torch.cat([x.new_zeros(2, 0), x, self.none], 1)
            return torch.block_diag(x, x), beside, self.none, torch.zeros(0) + torch.ones(0), x[:0].sum()

    x = _randn(2, 3)
    got = by_every_stage(export(tmp_path / "m.pt2", Empty(), x))(arrays_of(x))
    for ours, theirs in zip(got, Empty()(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_a_size_that_is_only_seen_doubled(tmp_path: Path) -> None:
    n = torch.export.Dim("n", min=2, max=8)
    model = _compare(tmp_path, lambda y: (y.view(-1, 2), y + 1), _randn(6), dynamic=({0: 2 * n},), more=[(_randn(10),)])
    assert model.signature.outputs[0].shape == ("s0", 2)


def test_symbolic_image(tmp_path: Path) -> None:
    h, w = torch.export.Dim("h", min=4, max=32), torch.export.Dim("w", min=4, max=32)

    def function(x: torch.Tensor) -> Tensors:
        kernel = torch.ones(2, 3, 3, 3)
        return (
            F.conv2d(x, kernel, stride=2, padding=1),
            F.interpolate(x, scale_factor=2.0),
            F.max_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 2),
            F.adaptive_avg_pool2d(x, 1),
        )

    model = _compare(tmp_path, function, _randn(1, 3, 8, 8), dynamic=({2: h, 3: w},), more=[(_randn(1, 3, 9, 12),)])
    assert model.signature.outputs[0].shape == (1, 2, "(s0 - 1)//2 + 1", "(s1 - 1)//2 + 1")


_ASKS_WHICH = {"_sum", "_mean", "_prod", "_full"}
"""Converters that look at the operator's name before they read arguments."""


def test_arguments_of_operators_that_share_a_converter_stand_at_the_same_places() -> None:
    """They are passed by place: `sort.stable` has `stable` before the dim."""
    shared: dict[Any, list[str]] = {}
    for name, converter in CONVERTERS.items():
        if name.startswith("aten."):
            shared.setdefault(converter, []).append(name)
    for converter, names in shared.items():
        if converter.__name__ in _ASKS_WHICH:
            continue
        parameters = list(inspect.signature(converter).parameters.values())[1:]
        read = sum(each.kind is not inspect.Parameter.VAR_POSITIONAL for each in parameters)
        schemas = [attrgetter(name)(torch.ops)._schema.arguments for name in names]
        for at in range(read):
            there = [arguments[at] for arguments in schemas if at < len(arguments)]
            told = {each.name for each in there}, {str(each.type).replace("number", "Tensor") for each in there}
            assert not there or min(map(len, told)) == 1, (converter.__name__, names, at)


def test_values_that_are_no_tensors(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> Any:
        return x.shape[0], x.sum(), 3, None, True, {"a": [x, 2.5]}

    n = torch.export.Dim("n", min=2, max=8)
    model = _compare(tmp_path, function, _randn(3, 2), dynamic=({0: n},), more=[(_randn(5, 2),)])
    names = ["output.0", "output.1", "output.2", "output.4", "output.5.a.0", "output.5.a.1"]
    assert [spec.name for spec in model.signature.outputs] == names


def test_inputs_in_containers_and_unused_ones(tmp_path: Path) -> None:
    def function(d: Any, xs: Any, unused: Any) -> Any:
        with torch.no_grad():
            return d["a"] + d["b"]["c"], xs[1]

    class Nested(nn.Module):
        def forward(self, d: Any, xs: Any, unused: Any, flag: bool = True, name: str = "n") -> Any:
            return function(d, xs, unused)

    path = export(
        tmp_path / "m.pt2",
        Nested(),
        {"a": _randn(2), "b": {"c": _randn(2)}},
        [_randn(3), _randn(1)],
        _randn(4),
        flag=False,
    )
    model = check(path, arrays_of(_randn(2), _randn(2), _randn(3), _randn(1), _randn(4)))
    assert [spec.name for spec in model.signature.inputs] == ["d.a", "d.b.c", "xs.0", "xs.1", "unused"]
    assert model.signature.constants == (("flag", False),)
    assert [param.name for param in model.module["main"].params] == ["d_a", "d_b_c", "xs_0", "xs_1", "unused"]


def test_views_of_one_storage_stay_right(tmp_path: Path) -> None:
    """Weights may share an entry, at offsets that TVM would not take."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = _randn(50)
            self.register_buffer("whole", whole)
            self.register_buffer("part", whole[3:19].view(4, 4))
            self.register_buffer("turned", whole[7:27].view(4, 5).T)

        def forward(self, x: torch.Tensor) -> Tensors:
            return x @ self.part, x @ self.turned.T, self.whole.sum() * x

    _compare(tmp_path, Shared(), _randn(2, 4))


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: x[x > 0], "data"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x * x.sum().item(), "_local_scalar_dense"),
        (lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)), "cond"),
        (lambda x: F.dropout(x), "bernoulli|dropout|rand"),
        (lambda x: x.add_(1), "changes"),
        (lambda x: torch.view_as_complex(x.reshape(-1, 2)).abs(), "complex"),
    ],
)
def test_what_is_not_supported_says_so(function: Callable[..., Any], what: str, tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", Module(function), _randn(2, 4))
    with pytest.raises(UnsupportedModel, match=what):
        exported_program.load(path, shapes={})


def test_halves_that_change_places_have_the_size_of_the_whole(tmp_path: Path) -> None:
    """TVM writes it as a sum that has the size in it, and put that into itself until the process died."""
    from tvm import relax

    def function(x: Any) -> Any:
        first, second = x.chunk(2, 0)
        return torch.cat([second, first * 2], 0).relu()

    n = torch.export.Dim.AUTO
    model = _compare(tmp_path, function, _randn(6, 2), dynamic=({0: n},), more=[(_randn(9, 2),)])
    assert relax.transform.CanonicalizeBindings()(model.module)
    assert len(model.signature.conditions) == 5  # torch's guards; nothing of ours, since it follows


def test_places_whose_bytes_wrap_are_inside(tmp_path: Path) -> None:
    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("at", torch.tensor([200, 100, 7], dtype=torch.uint8))

        def forward(self, x: torch.Tensor) -> Tensors:
            return x[(self.at * 2).long()], x[(self.at + 100).long()]

    _compare(tmp_path, Places(), _randn(256, 2))


def test_ranges_that_sizes_bound_are_as_long_as_torch_has_them(tmp_path: Path) -> None:
    """TVM takes a range that goes down for two longer than it is."""

    def function(x: Any) -> Any:
        n = x.shape[0]
        down, halves, floats = (
            torch.arange(n, 0, -1),
            torch.arange(n, 0, -2),
            torch.arange(n, 0, -1, dtype=torch.float32),
        )
        thirds = torch.arange(1, 3 * n, 3, dtype=torch.int32)
        return down[:, None] + x, torch.arange(n - 1, -1, -1), halves, floats, thirds[:, None] + x

    model = _compare(tmp_path, function, _randn(6, 2), dynamic=({0: torch.export.Dim.AUTO},), more=[(_randn(9, 2),)])
    assert bind(model.signature, [(9, 2)])
