"""Whole networks by AMX's tile registers, which are emulated: they pass the verification that others pass."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relaxc.schedules.cpu.attention import word_products
from relaxc.schedules.cpu.common.tile_registers import MATRIX
from relaxc.schedules.cpu.conv import tiles_nest
from relaxc.schedules.cpu.gemm import matrix_nest
from relaxc.service import compiler, machine
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.artifact.packing import LIBRARY
from relaxc.service.request import CompileOptions, Precision
from tests import zoo
from tests.frontend.onnx.harness import write
from tests.schedules.cpu.tiles import HERE, emulated
from tests.test_compiler_quantized import network
from tests.zoo.text import tokens

TILES = frozenset(json.loads(HERE)["features"])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["resnet18", "mobilenet_v2", "efficientnet", "convnext", "vit"])
def test_bfloat16(family: str, emulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Residuals, gates, depthwise convolutions among them, two images."""
    model = zoo.write_onnx(zoo.build(family), tmp_path / "model.onnx")
    made = compiled(model, CompileOptions(precision=Precision.BF16), tmp_path, monkeypatch)
    assert made.verified is True and by_tiles(made)


def test_attention(emulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 16, a mask of keys, two sequences of 12 tokens."""
    import transformers

    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.BertConfig(vocab_size=99, max_position_embeddings=64, initializer_range=0.2, **sizes)
    model = zoo.write_onnx(tokens(transformers.BertModel(config).eval(), "small"), tmp_path / "model.onnx")
    made = compiled(model, CompileOptions(precision=Precision.BF16), tmp_path, monkeypatch)
    assert made.verified is True
    assert MATRIX in next(each["parameters"] for each in made.schedule if each["function"] == "attention")


def test_bytes(emulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "avx512vnni" not in machine.cpu().features:
        pytest.skip("this CPU has no avx512vnni, without which bytes are computed in floats")
    made = compiled(write(tmp_path, network()), CompileOptions(), tmp_path, monkeypatch, "avx512vnni")
    assert made.verified is True and by_tiles(made)


def compiled(
    path: Path, options: CompileOptions, workdir: Path, monkeypatch: pytest.MonkeyPatch, *features: str
) -> Manifest:
    """Compile in this process, for a CPU that has AMX, which it then is for the verification."""
    for module in (tiles_nest, matrix_nest, word_products):
        monkeypatch.setattr(module, "with_code", emulated)
    here = machine.cpu()
    monkeypatch.setattr(machine, "cpu", lambda: replace(here, features=here.features | TILES))
    spec = json.loads(HERE)
    target = json.dumps({**spec, "features": [*spec["features"], *features]})
    compiler.run(compiler.prepare(path, target=target, options=options), workdir, lambda _: None)
    return Manifest.read(workdir / LIBRARY)


def by_tiles(made: Manifest) -> bool:
    """Whether some of its kernels have plans of tile registers."""
    return any(MATRIX in (each.get("parameters") or {}) for each in made.schedule)
