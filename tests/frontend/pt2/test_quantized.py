"""torch's `quantized_decomposed` operators against torch, and products of bytes out of what surrounds a linear."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch import nn

from relaxc.service.frontend import Move
from relaxc.service.frontend.pt2 import frontend
from relaxc.service.passes.common.block_weights import BlockWeights
from relaxc.service.passes.recognize.recognize_block_weights import RecognizeBlockWeights
from relaxc.service.passes.recognize.recognize_integer_products import RecognizeIntegerProducts
from tests.frontend.pt2.support import arrays_of, compiled, export
from tests.passes.graphs import ops

Q = torch.ops.quantized_decomposed
RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255)}


class Rounded(nn.Module):
    """Every quantization of an input, and back."""

    def forward(self, x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for dtype, (low, high) in RANGES.items():
            zero = low if dtype == torch.int8 else high
            found.append(Q.quantize_per_tensor(x, 0.03, zero, low, high, dtype))
            found.append(Q.dequantize_per_tensor(found[-1], 0.03, zero, low, high, dtype))
            found.append(Q.quantize_per_tensor(x, 0.07, 3, low + 1, high - 2, dtype))
            found.append(Q.quantize_per_channel(x, scales, zeros, 1, low, high, dtype))
            found.append(Q.dequantize_per_channel(found[-1], scales, zeros, 1, low, high, dtype))
        return tuple(found)


def test_rounding_is_torchs_to_the_bit(tmp_path: Path) -> None:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) * 4
    x[:4, 0] = torch.tensor([0.015, 0.045, 1e9, -1e9])
    scales, zeros = torch.tensor([0.03, 0.5, 0.001]), torch.tensor([0, 100, 1])
    path = export(tmp_path / "m.pt2", Rounded(), x, scales, zeros)
    model, reference = frontend.load(path, shapes={}), frontend.reference(path, threads=1, shapes={})
    arrays = arrays_of(x, scales, zeros)
    want = reference(dict(zip([spec.name for spec in model.signature.inputs], arrays, strict=True)))
    for (name, wanted), got in zip(want.items(), compiled(model)(arrays), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted, err_msg=name)


class Linear(nn.Module):
    """A linear of quantized activations, per tensor, and weights, per channel, quantized again behind."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.weight: Any
        self.register_buffer("weight", torch.from_numpy(rng.integers(-128, 128, (40, 24)).astype("int8")))
        self.scales: Any
        self.register_buffer("scales", torch.from_numpy(np.linspace(0.001, 0.02, 40, dtype="float32")))
        self.zeros: Any
        self.register_buffer("zeros", torch.from_numpy(rng.integers(-3, 4, 40)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        data = Q.quantize_per_tensor(x, 0.03, 17, 0, 255, torch.uint8)
        wide = Q.dequantize_per_tensor(data, 0.03, 17, 0, 255, torch.uint8)
        weight = Q.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        result = torch.nn.functional.linear(wide, weight)
        return result, Q.quantize_per_tensor(result, 0.2, 128, 0, 255, torch.uint8)


def test_a_linear_multiplies_bytes(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1)) * 3
    path = export(tmp_path / "m.pt2", Linear(), x)
    model, reference = frontend.load(path, shapes={}), frontend.reference(path, threads=1, shapes={})
    recognized = RecognizeIntegerProducts()(model.module)
    products = [b.value for block in recognized["main"].body.blocks for b in block.bindings]
    dtypes = [
        [str(arg.ty.dtype) for arg in call.args]
        for call in products
        if getattr(call, "op", None) is not None and getattr(call.op, "name", "") == "relax.matmul"
    ]
    assert dtypes == [["uint8", "int8"]] and "dequantize" not in ops(recognized)
    model = replace(model, module=recognized)
    (name,) = [spec.name for spec in model.signature.inputs]
    want = list(reference({name: x.numpy()}).values())
    got = compiled(model)([x.numpy()])
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-5 * np.abs(want[0]).max())
    assert np.abs(got[1].astype(int) - want[1]).max() <= 1


def test_the_reference_with_its_quantizations_moved(tmp_path: Path) -> None:
    x = torch.randn(400, 24, generator=torch.Generator().manual_seed(1)) * 3
    path = export(tmp_path / "m.pt2", Linear(), x)
    plain = list(frontend.reference(path, threads=1, shapes={})({"x": x.numpy()}).values())
    moved = frontend.moved_reference(path, Move.QUANTIZATIONS, threads=1, shapes={}, seed=0, by=1e-3)
    assert moved is not None
    apart = np.abs(list(moved({"x": x.numpy()}).values())[1].astype(int) - plain[1])
    assert 0 < (apart > 0).mean() < 0.25
    again = np.abs(list(moved({"x": x.numpy()}).values())[1].astype(int) - plain[1])
    assert not np.array_equal(apart, again)
    path = export(tmp_path / "plain.pt2", nn.ReLU(), x)
    assert frontend.moved_reference(path, Move.QUANTIZATIONS, threads=1, shapes={}, seed=0, by=1e-3) is None


def test_the_reference_without_the_rounding_of_activations(tmp_path: Path) -> None:
    x = torch.randn(400, 24, generator=torch.Generator().manual_seed(1)) * 3
    path = export(tmp_path / "m.pt2", Linear(), x)
    given = {"x": x.numpy()}
    plain = next(iter(frontend.reference(path, threads=1, shapes={})(given).values()))
    real = frontend.unquantized_reference(path, threads=1, shapes={})
    assert real is not None
    apart = np.sqrt(np.mean((next(iter(real(given).values())) - plain) ** 2)) / plain.std()
    assert 1e-4 < apart < 0.05
    path = export(tmp_path / "plain.pt2", nn.ReLU(), x)
    assert frontend.unquantized_reference(path, threads=1, shapes={}) is None


def test_the_reference_with_its_weights_moved(tmp_path: Path) -> None:
    """A weight of 16 bits falls to one of its neighbours or stays; ones add up what became of a row."""
    linear = nn.Linear(50, 50, bias=False).bfloat16()
    torch.nn.init.eye_(linear.weight)
    x = torch.ones(3, 50, dtype=torch.bfloat16)
    path = export(tmp_path / "m.pt2", linear, x)
    given = {"input": arrays_of(x)[0]}
    runs = [
        frontend.moved_reference(path, Move.WEIGHTS, threads=1, shapes={}, seed=seed, by=2.0**-5) for seed in (0, 0, 1)
    ]
    first, again, other = (next(iter(run(given).values())).astype("float64") for run in runs)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    apart = np.abs(first[0] - 1)
    assert 2**-7 < apart.max() <= 2**-5 + 2**-8 and len(np.unique(apart)) > 3
    plain = next(iter(frontend.reference(path, threads=1, shapes={})(given).values())).astype("float64")
    assert plain.tolist() == [[1.0] * 50] * 3


class Grouped(nn.Module):
    """Weights alone are quantized: int8 codes of 4 bits in groups, and torch's own product with int8 weights."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(3)
        self.codes: Any
        self.register_buffer("codes", torch.from_numpy(rng.integers(-8, 8, (40, 64)).astype("int8")))
        self.scales: Any
        self.register_buffer("scales", torch.from_numpy(rng.uniform(0.01, 0.02, (40, 4)).astype("float32")))
        self.zeros: Any
        self.register_buffer("zeros", torch.from_numpy(rng.integers(-8, 8, (40, 4)).astype("int32")))
        self.rows: Any
        self.register_buffer("rows", torch.linspace(0.001, 0.02, 24))
        self.bytes: Any
        self.register_buffer("bytes", torch.from_numpy(rng.integers(-127, 128, (24, 40)).astype("int8")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.codes, self.scales, self.zeros
        weight = Q.dequantize_per_channel_group(*parts, -8, 7, torch.int8, 16, torch.float32)
        hidden = torch.nn.functional.linear(x, weight)
        return torch.ops.aten._weight_int8pack_mm(hidden, self.bytes, self.rows)


def test_weights_alone_stay_quantized(tmp_path: Path) -> None:
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
    path = export(tmp_path / "m.pt2", Grouped(), x)
    model, reference = frontend.load(path, shapes={}), frontend.reference(path, threads=1, shapes={})
    seen: list[tuple[int, int]] = []

    def takes(rows: int, weights: BlockWeights) -> bool:
        seen.append((weights.bits, weights.block))
        return True

    kept = RecognizeBlockWeights(takes)(model.module)
    assert seen == [(4, 16), (8, 40)] and "dequantize" not in ops(kept)
    (name,) = [spec.name for spec in model.signature.inputs]
    (want,) = reference({name: x.numpy()}).values()
    (got,) = compiled(replace(model, module=kept))([x.numpy()])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
