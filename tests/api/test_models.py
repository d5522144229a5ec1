"""/v1/models and /v1/uploads through a real server: forms, parts, resumption, forged digests, names that are paths."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from itertools import pairwise
from urllib.parse import urlsplit

import httpx
import pytest

from relaxc.service.request import model_digest
from tests.api.conftest import RunningServer, make_onnx
from tests.api.jobs import ended, submit, uploaded
from tests.api.test_compile import problem_of
from tests.waiting import until


def sha256(content: bytes) -> str:
    """In lower-case hex."""
    return hashlib.sha256(content).hexdigest()


def put(server: RunningServer, digest: str, content: bytes, content_range: str | None = None) -> httpx.Response:
    """A part of an upload, or the whole."""
    headers = {"Content-Type": "application/octet-stream"}
    if content_range is not None:
        headers["Content-Range"] = content_range
    return server.client.put(f"/v1/uploads/{digest}?name=net.onnx", content=content, headers=headers)


def offset(server: RunningServer, digest: str) -> int:
    """Where an upload stands."""
    answer = server.client.head(f"/v1/uploads/{digest}?name=net.onnx")
    assert answer.status_code == 200
    return int(answer.headers["upload-offset"])


def test_a_form_makes_a_model(server: RunningServer) -> None:
    content = make_onnx(4, seed=40)
    first = server.client.post("/v1/models", files={"model": ("net.onnx", content)})
    model = first.json()
    assert first.status_code == 201
    assert first.headers["location"] == f"/v1/models/{model['digest']}"
    assert (model["digest"], model["name"], model["format"]) == (sha256(content), "net.onnx", "onnx")
    assert server.client.post("/v1/models", files={"model": ("net.onnx", content)}).status_code == 200
    assert server.client.get(first.headers["location"]).json() == model
    assert model["digest"] in [row["digest"] for row in server.client.get("/v1/models").json()["models"]]


def test_a_model_is_forgotten(server: RunningServer) -> None:
    digest = uploaded(server, make_onnx(4, seed=41))
    assert server.client.delete(f"/v1/models/{digest}").status_code == 204
    for method in ("GET", "DELETE"):
        answer = server.client.request(method, f"/v1/models/{digest}")
        assert (answer.status_code, problem_of(answer)["code"]) == (404, "model-not-found")
    assert problem_of(submit(server, digest))["code"] == "model-not-found"


@pytest.mark.parametrize("digest", ["0" * 64, "A" * 64, "x", "..%2f..", "%00"])
def test_a_guessed_digest_finds_nothing(server: RunningServer, digest: str) -> None:
    for method in ("GET", "DELETE"):
        answer = server.client.request(method, f"/v1/models/{digest}")
        assert answer.status_code == 404
        assert problem_of(answer)["code"] in ("model-not-found", "not-found")


def test_the_form_of_a_model_has_no_options(server: RunningServer, onnx_model: bytes) -> None:
    answer = server.client.post("/v1/models", files={"model": onnx_model}, data={"options": "{}"})
    assert problem_of(answer)["code"] == "invalid-option"


def test_one_put(server: RunningServer) -> None:
    content = make_onnx(4, seed=42)
    digest = sha256(content)
    assert offset(server, digest) == 0
    answer = put(server, digest, content)
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/models/{digest}")
    assert answer.json()["name"] == "net.onnx"
    assert offset(server, digest) == len(content)
    assert put(server, digest, content).status_code == 200
    assert ended(server, submit(server, digest).json()["id"])["state"] == "succeeded"


def test_parts(server: RunningServer) -> None:
    content = make_onnx(64, seed=43)
    digest, size = sha256(content), len(content)
    cuts = [0, 5000, 5001, size]
    for start, end in pairwise(cuts):
        assert offset(server, digest) == start
        answer = put(server, digest, content[start:end], f"bytes {start}-{end - 1}/{size}")
        if end < size:
            assert (answer.status_code, answer.headers["upload-offset"]) == (202, str(end))
            assert answer.json() == {"sha256": digest, "offset": end, "total": size}
    assert answer.status_code == 201


def test_a_part_for_another_place_is_told_where_to_go_on(server: RunningServer) -> None:
    content = make_onnx(64, seed=44)
    digest, size = sha256(content), len(content)
    put(server, digest, content[:5000], f"bytes 0-4999/{size}")
    for start, total in ((4000, size), (6000, size), (0, size), (5000, size + 1)):
        answer = put(server, digest, content[start : start + 10], f"bytes {start}-{start + 9}/{total}")
        assert (answer.status_code, problem_of(answer)["code"]) == (409, "upload-conflict")
        assert answer.headers["upload-offset"] == "5000"
    assert put(server, digest, content[5000:], f"bytes 5000-{size - 1}/{size}").status_code == 201


def test_what_came_before_a_cut_is_kept(server: RunningServer) -> None:
    content = make_onnx(1024, seed=45)  # 4 MiB
    digest, size = sha256(content), len(content)
    address = urlsplit(server.url)
    head = f"PUT /v1/uploads/{digest} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
        connection.sendall(head.encode() + content[:3_000_000])
        until(lambda: offset(server, digest) > 1_000_000)
    until(lambda: offset(server, digest) == 3_000_000)
    answer = put(server, digest, content[3_000_000:], f"bytes 3000000-{size - 1}/{size}")
    assert answer.status_code == 201


def test_a_model_of_several_files_is_no_upload_by_its_digest(server: RunningServer) -> None:
    files = {"model": ("net.onnx", make_onnx(4, seed=48)), "data": ("w.bin", b"beside")}
    model = server.client.post("/v1/models", files=files).json()
    assert model["digest"] == model_digest(sha256(files["model"][1]), {"w.bin": sha256(b"beside")})
    assert server.client.get(f"/v1/models/{model['digest']}").json() == model
    assert offset(server, model["digest"]) == 0
    assert problem_of(put(server, model["digest"], b"other"))["code"] == "digest-mismatch"


def test_a_forged_digest_keeps_nothing(server: RunningServer) -> None:
    content = make_onnx(4, seed=46)
    forged = "ab" * 32
    answer = put(server, forged, content)
    assert (answer.status_code, problem_of(answer)["code"]) == (422, "digest-mismatch")
    assert offset(server, forged) == 0
    assert server.client.get(f"/v1/models/{forged}").status_code == 404
    assert server.client.get(f"/v1/models/{sha256(content)}").status_code == 404


def test_what_is_no_model_is_not_kept(server: RunningServer) -> None:
    answer = put(server, sha256(b"hello"), b"hello")
    assert (answer.status_code, problem_of(answer)["code"]) == (415, "unknown-format")
    assert offset(server, sha256(b"hello")) == 0


@pytest.mark.parametrize(
    "content_range",
    [
        *("", "bytes", "bytes 0-9", "bytes 0-9/*", "bytes 9-0/10", "bytes 0-10/10", "lines 0-9/10", "bytes 0-8/10"),
        "bytes -1-9/10",
    ],
)
def test_a_wrong_content_range(server: RunningServer, content_range: str) -> None:
    answer = put(server, "cd" * 32, b"x" * 10, content_range)
    assert (answer.status_code, problem_of(answer)["code"]) == (400, "invalid-option")
    assert offset(server, "cd" * 32) == 0


def test_a_body_longer_than_its_range(server: RunningServer) -> None:
    def body() -> Iterator[bytes]:
        yield b"x" * 20

    headers = {"Content-Range": "bytes 0-9/100"}
    answer = server.client.put(f"/v1/uploads/{'ef' * 32}", content=body(), headers=headers)
    assert (answer.status_code, problem_of(answer)["code"]) == (400, "invalid-option")


@pytest.mark.parametrize("digest", ["x", "A" * 64, "0" * 63, "..%2f..%2fetc"])
def test_an_upload_is_named_by_a_digest(server: RunningServer, digest: str) -> None:
    answer = put(server, digest, b"x")
    assert answer.status_code in (400, 404)
    assert problem_of(answer)["code"] in ("invalid-option", "not-found")


def test_an_announced_size_over_the_limit_is_refused_at_once(server: RunningServer) -> None:
    answer = put(server, "12" * 32, b"x" * 10, f"bytes 0-9/{1 << 40}")
    assert (answer.status_code, problem_of(answer)["code"]) == (413, "model-too-large")


@pytest.mark.parametrize("name", ["", "a%00b", "a%0Ab", "x" * 300])
def test_a_name_is_a_line_of_text(server: RunningServer, name: str) -> None:
    answer = server.client.put(f"/v1/uploads/{'34' * 32}?name={name}", content=b"x")
    assert (answer.status_code, problem_of(answer)["code"]) == (422, "invalid-request")


def test_a_name_that_is_a_path_names_no_file(server: RunningServer) -> None:
    content = make_onnx(4, seed=47)
    answer = server.client.put(f"/v1/uploads/{sha256(content)}?name=../../etc/passwd", content=content)
    assert answer.status_code == 201
    assert not list(server.cache.rglob("passwd"))
