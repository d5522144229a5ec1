"""The benchmark of quantized weights runs: a product beside the memory, and a decoding step of each shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.weights import kernels
from benchmarks.weights.decoders import MODELS, Step, inputs


@pytest.mark.parametrize("bits", [4, 8])
def test_a_product_is_timed_beside_reading(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_COLD_BYTES", 1 << 20)
    row = kernels.timed(64, 96, bits, threads=2, rounds=3)
    assert row.size_bytes == 64 * 96 * bits // 8 + 96 * 4
    assert row.seconds > 0 and row.limit > 0 and row.gbps > 0 and row.of_bandwidth > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_step_gives_logits_and_what_to_keep(name: str) -> None:
    shape = replace(MODELS[name], layers=2, width=96, hidden=128, vocabulary=64, cache=8)
    with torch.no_grad():
        logits, keys, values = Step(shape).eval()(*inputs(shape))
    assert logits.shape == (1, 1, 64) and torch.isfinite(logits).all()
    assert keys.shape == values.shape == (2, 1, shape.keys, 1, 8)
