"""torch's 8-bit floats: casts to the bit, and scaled products against torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from relaxc.service import compiler
from relaxc.service.errors import UnsupportedModel
from relaxc.service.frontend import Move
from relaxc.service.frontend.pt2 import frontend
from tests.frontend.pt2.support import arrays_of, compiled, export
from tests.passes.graphs import ops

F8 = torch.float8_e4m3fn


class Cast(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(F8).to(torch.float32)


class Wide(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32)


class Scaled(nn.Module):
    """A product with a scale a tensor, or a row of x and a column of the weights."""

    def __init__(self, *, rows: bool, out: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        weight, self.rows, self.out = torch.randn(48, 64, generator=draw), rows, out
        scale = (weight.abs().amax(1, keepdim=True) if rows else weight.abs().max()) / 448
        self.register_buffer("weight", (weight / scale).to(F8))
        self.register_buffer("scale", scale.t().contiguous() if rows else scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = (x.abs().amax(1, keepdim=True) if self.rows else x.abs().max()) / 448
        low = (x / scale).to(F8)
        return torch._scaled_mm(low, self.weight.t(), scale_a=scale, scale_b=self.scale, out_dtype=self.out)


def both(tmp_path: Path, module: nn.Module, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """What we compute, and what torch does."""
    path = export(tmp_path / "m.pt2", module, x)
    model = frontend.load(path, shapes={})
    (got,) = compiled(model)(arrays_of(x))
    return got, module(x).to(torch.float32).numpy()


def test_casts_are_quantizations_by_1(tmp_path: Path) -> None:
    """Which `tests/passes/legalize/test_legalize_float8.py` compares to the bit."""
    model = frontend.load(export(tmp_path / "m.pt2", Cast(), torch.randn(16)), shapes={})
    assert [name for name in ops(model.module) if "quantize" in name] == ["quantize", "dequantize"]


@pytest.mark.parametrize("rows", [False, True])
def test_scaled_products(tmp_path: Path, rows: bool) -> None:
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(2))
    got, want = both(tmp_path, Scaled(rows=rows), x)
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=1e-2, atol=1e-2 * np.abs(want).max())


def test_a_model_s_result_in_8_bits_is_refused(tmp_path: Path) -> None:
    path = export(tmp_path / "m.pt2", Scaled(rows=False, out=F8), torch.randn(16, 64))
    with pytest.raises(UnsupportedModel, match="only weights may have"):
        frontend.load(path, shapes={})


@pytest.mark.parametrize("rows", [False, True])
def test_what_is_rounded_to_8_bits_may_fall_elsewhere(tmp_path: Path, rows: bool) -> None:
    """Two layers: the second one's steps are a hundredth of what it rounds, and a last digit of a float decides."""
    two = nn.Sequential(Scaled(rows=rows, out=torch.float32), nn.Linear(48, 64), Scaled(rows=rows))
    path = export(tmp_path / "m.pt2", two.eval(), x := torch.randn(64, 64))
    other = frontend.moved_reference(path, Move.QUANTIZATIONS, threads=1, shapes={}, seed=0, by=1e-3)
    assert other is not None
    (got,), want = other({"input": x.numpy()}).values(), two(x).to(torch.float32)
    off = np.linalg.norm(got.astype(np.float32) - want.detach().numpy()) / want.norm().item()
    assert 1e-4 < off < 0.1


def test_such_a_model_is_verified(tmp_path: Path) -> None:
    """The last digits of sums decide which of two 8-bit floats the next layer reads."""
    layers = [nn.Sequential(nn.LayerNorm(64), Scaled(rows=True), Wide(), nn.GELU()) for _ in range(4)]
    for each in layers:
        each.append(nn.Linear(48, 64, bias=False))
        each[-1].weight.data = torch.randn(64, 48, generator=torch.Generator().manual_seed(3))
    request = compiler.prepare(export(tmp_path / "m.pt2", nn.Sequential(*layers).eval(), torch.randn(512, 64)))
    compiler.run(request, tmp_path, lambda event: None)
