"""What is read of an ONNX file, how often, and what of it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxc.service import frontend
from relaxc.service.errors import ModelMalformed, ModelNotFound
from relaxc.service.frontend.onnx import file
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import model, node, value, write


def product(folder: Path, columns: int = 64, name: str = "model.onnx") -> Path:
    """y = (x w) s, of a large and a small weight."""
    held = {"w": np.ones((64, columns), "float32"), "s": np.full(columns, 2, "float32")}
    nodes = [node("MatMul", ["x", "w"], ["xw"]), node("Mul", ["xw", "s"], ["y"])]
    return write(folder, model(nodes, [value("x", [3, 64])], [value("y", [3, columns])], **held), name)


def test_an_outline_has_all_but_the_data_of_large_tensors(tmp_path: Path) -> None:
    path = product(tmp_path)
    whole, found = file.parse(path), file.outline(path)
    large, small = found.graph.initializer
    assert (list(large.dims), large.raw_data) == ([64, 64], b"")
    assert small == whole.graph.initializer[1] and list(found.graph.node) == list(whole.graph.node)
    assert found.ByteSize() < 1000 < whole.ByteSize()


def test_an_outline_is_of_the_file_as_it_is(tmp_path: Path) -> None:
    path = product(tmp_path)
    first = file.outline(path)
    assert file.outline(path) is first
    product(tmp_path, columns=65, name="other.onnx").replace(path)
    assert list(file.outline(path).graph.initializer[0].dims) == [64, 65]
    path.unlink()
    with pytest.raises(ModelNotFound):
        file.outline(path)


def test_an_outline_is_checked(tmp_path: Path) -> None:
    path = product(tmp_path)
    broken = file.parse(path)
    broken.graph.initializer[0].dims[0] = 65
    path.write_bytes(broken.SerializeToString())
    with pytest.raises(ModelMalformed, match="claims 16640 bytes and the file holds 16384"):
        file.outline(path)


@pytest.mark.parametrize("content", [b"", b"\x08", b"\xff" * 5000])
def test_what_is_no_model_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for read in (file.parse, file.outline):
        with pytest.raises(ModelMalformed, match=r"model\.onnx (has no graph|is damaged)"):
            read(path)


def test_a_reference_of_a_model_without_codes_maps_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = product(tmp_path), []

    def counted(name: str, function: Any) -> Any:
        def call(path: Path) -> Any:
            read.append((name, path))
            return function(path)

        return call

    places = [
        ("file", "parse"),
        ("file", "mapped"),
        ("graph", "mapped"),
        ("reference", "parse"),
        ("reference", "mapped"),
        ("light", "mapped"),
    ]
    counting = {name: counted(name, getattr(file, name)) for name in ("parse", "mapped")}
    for module, name in places:
        monkeypatch.setattr(f"relaxc.service.frontend.onnx.{module}.{name}", counting[name])
    assert frontend.input_ranges(path, ModelFormat.ONNX) == {}
    assert frontend.unquantized_reference(path, ModelFormat.ONNX, threads=1, shapes={}) is None
    run = frontend.reference(path, ModelFormat.ONNX, threads=1, shapes={})
    assert (run({"x": np.ones((3, 64), "float32")})["y"] == 128).all()
    assert read == [("mapped", path), ("mapped", path)]  # for the outline, and for the session
