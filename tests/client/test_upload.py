"""Models go up once, in parts, over wires that break, with their external data."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest

from relaxc.service.client.flow import Call, Work
from relaxc.service.client.upload import CHUNK_BYTES, external_data, upload
from relaxc.service.errors import ModelMalformed, ModelNotFound, UnknownFormat
from tests.api.conftest import RunningServer, make_onnx
from tests.client.conftest import Ask
from tests.client.wire import Cut, Wire

WIDTH = 2304
"""20 MiB of weights: two parts of an upload and a rest."""


def test_a_model_goes_up_once(server: RunningServer, wire: Wire, ask: Ask, model: Path) -> None:
    first, again = ask(wire.url, "upload", model), ask(wire.url, "upload", str(model))
    assert first == again
    assert first.digest == hashlib.sha256(model.read_bytes()).hexdigest()
    assert (first.name, first.format, first.size_bytes) == ("model.onnx", "onnx", model.stat().st_size)


def test_an_upload_goes_on_where_it_was_cut(
    server: RunningServer, wire: Wire, ask: Ask, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "large model.onnx"
    path.write_bytes(make_onnx(WIDTH, seed=len(request.node.name)))
    wire.cuts.extend([Cut(up=3 << 20), Cut(up=6 << 20), Cut(down=100), Cut(up=1 << 20)])
    sent = ask(wire.url, "upload", path)
    assert (sent.name, sent.size_bytes) == ("large model.onnx", path.stat().st_size)
    assert sent.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert wire.connections >= 5


def test_an_upload_goes_on_in_another_process(server: RunningServer, ask: Ask, tmp_path: Path, wire: Wire) -> None:
    content = make_onnx(WIDTH, seed=hash(str(tmp_path)) % 2**32)
    (tmp_path / "m.onnx").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    part = {"Content-Range": f"bytes 0-{CHUNK_BYTES - 1}/{len(content)}"}
    begun = server.client.put(f"/v1/uploads/{digest}", content=content[:CHUNK_BYTES], headers=part)
    assert begun.status_code == 202
    wire.cuts.append(Cut(up=len(content) - CHUNK_BYTES // 2))  # less than the whole
    assert ask(wire.url, "upload", tmp_path / "m.onnx").digest == digest
    assert wire.up < len(content)


def test_what_is_no_model_is_refused_as_it_is_here(server: RunningServer, ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no file"):
        ask(server.url, "upload", tmp_path / "missing.onnx")
    for name, content in (("text", b"hello, this is no model"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnknownFormat) as refused:
            ask(server.url, "upload", tmp_path / name)
        assert refused.value.remedy == UnknownFormat.remedy


def _with_external_data(folder: Path) -> Path:
    model = onnx.load_from_string(make_onnx(64, seed=hash(str(folder)) % 2**32))
    name = "weights of " + "x" * 150  # over 127 characters: a length of two bytes
    (folder / name).write_bytes(model.graph.initializer[0].raw_data)
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], name)
    model.graph.initializer[0].ClearField("raw_data")
    path = folder / "external.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_is_found_and_goes_along(server: RunningServer, ask: Ask, tmp_path: Path) -> None:
    path = _with_external_data(tmp_path)
    (beside,) = external_data(path)
    sent = ask(server.url, "upload", path)
    assert sent.size_bytes == path.stat().st_size + beside.stat().st_size
    assert ask(server.url, "upload", path, data=[beside]) == sent
    with pytest.raises(ModelMalformed, match="is not there"):
        ask(server.url, "upload", path, data=[])


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "", "a/b", "."])
def test_only_files_beside_the_model_go_along(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "model").mkdir()
    model = onnx.load_from_string(make_onnx(4))
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], location)
    path = tmp_path / "model" / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert external_data(path) == []


class _Answer:
    """What a server says of a model, as much as the steps ask of it."""

    status_code = 200

    def __init__(self, digest: str) -> None:
        self.headers = {"upload-offset": "0"}
        self._digest = digest

    def json(self) -> dict[str, object]:
        return {"digest": self._digest, "name": "m", "format": "onnx", "size_bytes": 1}


def test_a_model_that_answers_by_an_alias_is_not_taken_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(make_onnx(4))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for answered, asked in ((digest, ["GET"]), ("a" * 64, ["GET", "HEAD", "PUT"])):
        steps, calls, sent = upload(path, data=[]), [], None
        with pytest.raises(StopIteration) as end:
            while True:
                step = steps.send(sent)
                if isinstance(step, Work):
                    sent = step.function()
                elif isinstance(step, Call):
                    calls.append(step.method)
                    sent = _Answer(answered if step.method == "GET" else digest)
        assert (calls, end.value.value.digest) == (asked, digest)
