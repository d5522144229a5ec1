"""Rounded models for the device: what they are, what is carried of their weights, how their numbers are compared."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import torch

from benchmarks.gpu import child_drawn
from benchmarks.gpu.drawn import drawn_entries
from benchmarks.gpu.drawn_build import computed_on_cpu
from benchmarks.gpu.e4m3 import scaled_blocks, write_layers
from benchmarks.gpu.manifest import Entry
from benchmarks.gpu.table import tables
from tests.benchmarks.on_cpu import on_cpu


def test_what_is_compared_has_a_reference_and_what_is_timed_has_a_peer():
    for entry in drawn_entries():
        has_reference = f"{entry.case['model']}.reference.npz" in entry.files
        assert has_reference == (len(entry.case["kinds"]) == 1)


@pytest.mark.parametrize("by_column", [False, True])
def test_layers_of_e4m3(by_column, tmp_path):
    path = write_layers(tmp_path / "model.onnx", (32, 64, 16), 5, by_column=by_column)
    x = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    made = computed_on_cpu(path, {"x": x})
    assert made.shape == (5, 16) and np.isfinite(made).all() and made.std() > 0.1


@pytest.mark.parametrize("by_row", [False, True])
def test_blocks_of_scaled_products(by_row):
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made = scaled_blocks(32, by_row=by_row)(x)
    assert made.shape == x.shape and made.isfinite().all() and not torch.equal(made, x)


def test_carried_weights_are_kept_to_the_bit_and_others_drawn(tmp_path, monkeypatch):
    low = np.arange(6, dtype=np.float32).astype(ml_dtypes.float8_e4m3fn).reshape(2, 3)
    np.savez(tmp_path / "m.e4m3.npz", w0=low.view(np.uint8))
    weights = [[[2, 3], "float8_e4m3fn"], [[4], "int8"], [[3, 1], "float16"]]
    (tmp_path / "m.e4m3.json").write_text(json.dumps({"weights": weights}))
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), 2.0, np.float32)
    np.savez(tmp_path / "m.reference.npz", x=x, y=y, plain=y * 1.5)
    given = []

    def load_model(library, made, inputs):
        given.extend(made)
        return (lambda x: x * 2.02), 0.1

    monkeypatch.setattr(child_drawn, "load_model", load_model)
    monkeypatch.setattr(child_drawn, "results_of", lambda value: [value])
    entry = Entry("drawn/m", "drawn", {"model": "m", "kinds": ["e4m3"]})
    with on_cpu(monkeypatch):
        found = child_drawn.measure_drawn(tmp_path, entry)
    assert found["right"] and abs(found["error"] - 0.01) < 1e-4 and abs(found["reference_to_fp32"] - 1 / 3) < 1e-6
    assert [(list(each.shape), str(each.dtype)[6:]) for each in given] == [tuple(each) for each in weights]
    assert given[0].float().flatten().tolist() == [0, 1, 2, 3, 4, 5]
    text = tables([entry], [{"id": entry.id, "status": "done", **found}])
    assert "### Rounded models" in text and "| m |  |  |  | 1.0e-02 |" in text
