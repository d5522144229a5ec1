"""Every damaged, hostile or unsupported ONNX file gives its documented error."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from relaxc.service.errors import ModelError, by_code
from relaxc.service.frontend import digest, identify, load
from tests.frontend.onnx.harness import model, node, value
from tests.malformed_onnx import MALFORMED_ONNX


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """The service's workers have these imported before they see a model."""
    importlib.import_module("relaxc.service.frontend.onnx.importer")


@pytest.mark.parametrize("name", MALFORMED_ONNX)
def test_documented_error(name: str, tmp_path: Path) -> None:
    builder, code = MALFORMED_ONNX[name]
    path = builder(tmp_path)
    with pytest.raises(ModelError) as caught:
        format = identify(path)
        digest(path, format)
        load(path, format)
    assert caught.value.code == code, caught.value.message
    assert by_code()[code] is type(caught.value)
    assert "\n" not in caught.value.message


def test_table_is_large_enough() -> None:
    assert len(MALFORMED_ONNX) >= 22


def _mutants(seed: int, count: int) -> list[bytes]:
    """Small good models with one to three bytes changed, removed or added."""
    rng = np.random.default_rng(seed)
    good = [
        model(
            [node("MatMul", ["x", "w"], ["h"]), node("Shape", ["h"], ["s"]), node("Gather", ["s", "i"], ["y"], axis=0)],
            [value("x", ["n", 8])],
            [value("y", [1], 7)],
            w=np.ones((8, 4), "float32"),
            i=np.array([0], "int64"),
        ),
        model(
            [node("Conv", ["x", "k"], ["h"], pads=[1, 1, 1, 1], group=2), node("Reshape", ["h", "t"], ["y"])],
            [value("x", [1, 4, 8, 8])],
            [value("y", ["a", "b"])],
            k=np.ones((4, 2, 3, 3), "float32"),
            t=np.array([2, -1], "int64"),
        ),
    ]
    mutants = []
    for _ in range(count):
        data = bytearray(good[rng.integers(len(good))].SerializeToString())
        for _ in range(rng.integers(1, 4)):
            place, kind = rng.integers(len(data)), rng.integers(3)
            new = rng.bytes(int(rng.integers(1, 5)))
            data[place : place + (0 if kind == 1 else len(new))] = b"" if kind == 2 else new
        mutants.append(bytes(data))
    return mutants


def test_mutants_give_a_model_or_a_documented_error(tmp_path: Path) -> None:
    path, loaded = tmp_path / "model.onnx", 0
    for data in _mutants(0, 300):
        path.write_bytes(data)
        try:
            format = identify(path)
            digest(path, format)
            load(path, format)
        except ModelError:
            continue
        loaded += 1
    assert loaded > 0
