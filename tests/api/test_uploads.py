"""Uploads: what a form may be, limits that hold while it streams, names that are paths, memory that stays flat."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import onnx
import psutil
import pytest

from relaxc.service.api.uploads import OVERHEAD_BYTES, FormReader, Upload, receive
from relaxc.service.errors import InvalidOption, ModelTooLarge, ModelUnsafe
from tests.api.conftest import RunningServer, make_onnx
from tests.api.test_compile import problem_of
from tests.waiting import PATIENCE_S, until

TYPE = "multipart/form-data; boundary=BB"


def part(name: str, content: bytes, filename: str | None = None, headers: str = "") -> bytes:
    """One part of a form with the boundary BB."""
    file = f'; filename="{filename}"' if filename is not None else ""
    return f'--BB\r\nContent-Disposition: form-data; name="{name}"{file}\r\n{headers}\r\n'.encode() + content + b"\r\n"


END = b"--BB--\r\n"


def read(body: bytes, folder: Path, *, limit: int = 1000, cuts: int = 0, content_type: str = TYPE) -> Upload:
    """Reads a body in one piece, or in pieces of random length."""
    chosen = random.Random(cuts)
    places = sorted(chosen.randrange(len(body)) for _ in range(cuts))

    async def chunks() -> AsyncIterator[bytes]:
        for start, end in zip([0, *places], [*places, len(body)], strict=True):
            yield body[start:end]

    return asyncio.run(receive(chunks(), content_type, folder, limit))


@pytest.mark.parametrize("cuts", [0, 1, 7, 60])
def test_a_form_comes_apart_however_it_is_cut(tmp_path: Path, cuts: int) -> None:
    model = bytes(range(256)) + b"\r\n--B\r\n--BBB" * 3
    body = (
        part("target", b"x86-64-v3")
        + part("data", b"weights", "w.bin")
        + part("model", model, "net.onnx", "Content-Type: application/octet-stream\r\n")
        + part("options", b'{"seed": 1}')
        + END
    )
    upload = read(body, tmp_path, cuts=cuts)
    assert upload.model == tmp_path / "net.onnx"
    assert upload.model.read_bytes() == model
    kept = {"net.onnx": model, "w.bin": b"weights"}
    assert upload.sha256s == {name: hashlib.sha256(content).hexdigest() for name, content in kept.items()}
    assert upload.size_bytes == len(model) + 7
    assert upload.fields == {"target": "x86-64-v3", "options": '{"seed": 1}'}
    assert (tmp_path / "w.bin").read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "ends before"),
        (b"hello", "not a well-formed"),
        (part("model", b"x", "m"), "ends before"),
        (part("model", b"x", "m")[:-20], "ends before"),
        (END, "not a well-formed|no part named model"),
        (part("options", b"{}") + END, "no part named model"),
        (part("model", b"x", "m") + part("model", b"y", "n") + END, "two parts named model"),
        (part("target", b"x") + part("target", b"y") + END, "two parts named target"),
        (part("model", b"x", "m") + part("data", b"y", "m") + END, "two parts have the file name 'm'"),
        (part("data", b"x", "w") + part("data", b"y", "w") + END, "two parts have the file name 'w'"),
        (part("file", b"x", "m") + END, "a part named 'file'"),
        (part("options", b"x" * 70_000) + END, "over 65536 bytes"),
        (part("options", b"\xff\xfe") + END, "not UTF-8"),
        (b"".join(part("data", b"", f"f{i}") for i in range(1100)) + END, "over 1024 parts"),
        (b"--BB\r\nno header\r\n\r\nx\r\n" + END, "not a well-formed|a part named ''"),
        (b"--BB\r\n\r\nx\r\n" + END, "a part named ''"),
        (b"--BB\r\nX: " + b"y" * 10_000 + b"\r\n\r\nx\r\n" + END, "not a well-formed"),
        (b"--BB\r\n" + b"X: y\r\n" * 100 + b"\r\nx\r\n" + END, "not a well-formed"),
    ],
)
def test_a_form_that_is_none_is_refused(tmp_path: Path, body: bytes, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        read(body or b"\r\n", tmp_path)


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        f"multipart/form-data; boundary={'x' * 500}",
    ],
)
def test_another_content_type_is_refused(tmp_path: Path, content_type: str) -> None:
    with pytest.raises(InvalidOption, match="boundary"):
        FormReader(content_type, tmp_path, 1)


@pytest.mark.parametrize(
    "name", ["../w.bin", "/etc/passwd", "a/b", "..", ".", "", "a\\\\b", "a\x01b", "x" * 256, "..\\\\..\\\\w"]
)
def test_a_data_part_whose_name_is_a_path_is_unsafe(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(ModelUnsafe, match="plain name"):
        read(part("data", b"x", name) + END, tmp_path / "in")
    assert [path.name for path in tmp_path.rglob("*")] == ["in"]


@pytest.mark.parametrize(
    "rest",
    [
        END + b"epilogue" * (OVERHEAD_BYTES // 8 + 100),
        b"".join(part("data", b"", f"f{i}" + "x" * 200, f"X: {'y' * 3500}\r\n") for i in range(300)) + END,
    ],
    ids=["after its last boundary", "in headers"],
)
def test_what_is_no_file_has_a_limit_too(tmp_path: Path, rest: bytes) -> None:
    with pytest.raises(ModelTooLarge, match="1000 bytes"):
        read(part("model", b"x" * 600, "m") + rest, tmp_path, limit=1000, cuts=20)


def test_a_form_without_end_is_refused_soon(server: RunningServer) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield part("model", b"x", "m") + END
        while True:
            sent += 1 << 20
            yield bytes(1 << 20)

    try:
        answer = server.client.post("/v1/models", content=endless(), headers={"Content-Type": TYPE})
        assert (answer.status_code, problem_of(answer)["code"]) == (413, "model-too-large")
    except httpx.WriteError:  # the server has answered and closed; this client reads only once it has sent everything
        pass
    assert 300 <= sent >> 20 < 300 + 256 + 64  # the limit, what is thrown away after it, and what buffers hold
    assert server.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("name", ["../../net.onnx", "/etc/passwd", "..", "\u00fc\u00e4.onnx", "-rf", "", "a b;c"])
def test_a_models_name_is_only_a_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    upload = read(part("model", b"x", name) + END, tmp_path / "in")
    assert upload.model is not None
    assert upload.model.parent == tmp_path / "in"
    assert upload.model.name in ("net.onnx", "passwd", "model")


def test_the_size_limit_holds_over_all_files_at_its_first_byte(tmp_path: Path) -> None:
    body = part("model", b"x" * 600, "m") + part("data", b"y" * 400, "w")
    assert read(body + END, tmp_path, limit=1000).size_bytes == 1000
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(ModelTooLarge, match="1000 bytes"):
        read(body + part("data", b"z", "v") + END, tmp_path, limit=1000)


# Through the server


def test_an_upload_that_says_it_is_too_large_is_refused_at_once(server: RunningServer, tmp_path: Path) -> None:
    big = tmp_path / "big.onnx"
    with big.open("wb") as file:
        file.truncate(2 << 30)
    done = subprocess.run(
        ["curl", "-sS", "-F", f"model=@{big}", f"{server.url}/v1/compile"],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["code"] == "model-too-large"


def test_an_upload_that_does_not_say_is_refused_when_it_passes(server: RunningServer) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield part("model", b"", "m")[:-2]
        while True:
            sent += 1 << 20
            yield bytes(1 << 20)

    try:
        answer = server.client.post("/v1/compile", content=endless(), headers={"Content-Type": TYPE})
        assert problem_of(answer)["code"] == "model-too-large"
        assert answer.status_code == 413
    except httpx.WriteError:  # the server has answered and closed; this client reads only once it has sent everything
        pass
    assert 300 <= sent >> 20 < 300 + 256 + 64  # the limit, what is thrown away after it, and what buffers hold
    assert server.client.get("/healthz").status_code == 200


def test_memory_stays_flat_while_a_large_upload_streams(server: RunningServer) -> None:
    process = psutil.Process(server.process.pid)
    before, peak, done = process.memory_info().rss, 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, process.memory_info().rss)

    def body() -> Iterator[bytes]:
        yield part("model", b"", "m")[:-2]
        for _ in range(250):
            yield bytes(1 << 20)
        yield b"\r\n" + END

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answer = server.client.post("/v1/compile", content=body(), headers={"Content-Type": TYPE})
    finally:
        done.set()
        watcher.join()
    assert problem_of(answer)["code"] == "unknown-format"
    assert peak - before < 50 << 20


def test_a_caller_that_breaks_off_leaves_no_file(server: RunningServer) -> None:
    address = urlsplit(server.url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 0)) as connection:
        head = (
            f"POST /v1/compile HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {TYPE}\r\nContent-Length: 5000000\r\n\r\n"
        )
        connection.sendall(head.encode() + part("model", bytes(2 << 20), "m"))
        until(lambda: uploads(server) == 1)
    until(lambda: not uploads(server))


def uploads(server: RunningServer) -> int:
    """How many upload folders there are."""
    return len(list(server.cache.glob("jobs/*/upload-*")))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("{", "invalid-option"),
        ("[]", "invalid-option"),
        ("[" * 60_000, "invalid-option"),
        ('{"colour": 1}', "invalid-option"),
        ('{"opt_level": 9}', "invalid-option"),
        ('{"opt_level": "2"}', "invalid-option"),
        ('{"precision": "fp8"}', "invalid-option"),
        ('{"seed": -1}', "invalid-option"),
        ('{"seed": NaN}', "invalid-option"),
        ('{"plugins": ["/etc/passwd"]}', "invalid-option"),
        ('{"shapes": {"x": [-1]}}', "invalid-shape"),
        ('{"shapes": {"x": "1,2"}}', "invalid-shape"),
    ],
)
def test_wrong_options(server: RunningServer, onnx_model: bytes, options: str, code: str) -> None:
    answer = server.client.post("/v1/compile", files={"model": onnx_model}, data={"options": options})
    assert problem_of(answer)["code"] == code


@pytest.mark.parametrize("target", ["z80", "{", '{"kind": "llvm", "mcpu": "; rm -rf /"}', '{"kind": "cuda"}'])
def test_wrong_targets(server: RunningServer, onnx_model: bytes, target: str) -> None:
    answer = server.client.post("/v1/compile", files={"model": onnx_model}, data={"target": target})
    assert problem_of(answer)["code"] == "invalid-target"


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "unknown-format"), (b"hello", "unknown-format"), (b"PK\x05\x06" + bytes(18), "unknown-format")],
)
def test_what_is_no_model(server: RunningServer, content: bytes, code: str) -> None:
    answer = server.client.post("/v1/compile", files={"model": ("net.onnx", content)})
    assert problem_of(answer)["code"] == code
    assert answer.status_code == 415
    until(lambda: not uploads(server))


@pytest.fixture
def external(tmp_path: Path) -> Callable[[str], bytes]:
    """A model whose weights are external data at a place of one's choice."""

    def make(location: str) -> bytes:
        model = onnx.load_from_string(make_onnx(64, seed=9))
        onnx.external_data_helper.set_external_data(model.graph.initializer[0], location)
        (tmp_path / "w.bin").write_bytes(model.graph.initializer[0].raw_data)
        model.graph.initializer[0].ClearField("raw_data")
        return bytes(model.SerializeToString())

    return make


def test_external_data_comes_in_parts_and_counts_in_the_digest(
    server: RunningServer, external: Callable[[str], bytes], tmp_path: Path
) -> None:
    model, digests = external("w.bin"), []
    data = (tmp_path / "w.bin").read_bytes()
    for content in (data, data[::-1]):
        parts = [("model", ("net.onnx", model)), ("data", ("w.bin", content))]
        answer = server.client.post("/v1/compile", files=parts)
        assert answer.status_code == 200
        manifest = server.client.get(answer.headers["link"].partition(">")[0].strip("<")).json()
        digests.append(manifest["digests"]["model"])
    assert digests[0] != digests[1]


def test_external_data_that_did_not_come(server: RunningServer, external: Callable[[str], bytes]) -> None:
    problem = problem_of(server.client.post("/v1/compile", files={"model": external("w.bin")}))
    assert problem["code"] == "model-malformed"


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "../../../../../etc/passwd"])
def test_external_data_outside_the_upload(
    server: RunningServer, external: Callable[[str], bytes], location: str
) -> None:
    problem = problem_of(server.client.post("/v1/compile", files={"model": external(location)}))
    assert problem["code"] == "model-unsafe"
    until(lambda: not server.jobs())
