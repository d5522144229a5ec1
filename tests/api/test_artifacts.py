"""Finished files over HTTP: validators, ranges, immutable caching, and a start that does not depend on size."""

from __future__ import annotations

import hashlib

import psutil
import pytest

from tests.api.conftest import RunningServer, make_onnx
from tests.api.test_compile import post, problem_of


@pytest.fixture(scope="module")
def digest(server: RunningServer, onnx_model: bytes) -> str:
    """An artifact in the store."""
    return str(post(server, onnx_model, shapes={"weights_mib": 3}).headers["etag"].strip('"'))


def test_get_and_head(server: RunningServer, digest: str) -> None:
    got, head = server.client.get(f"/v1/artifacts/{digest}"), server.client.head(f"/v1/artifacts/{digest}")
    assert hashlib.sha256(got.content).hexdigest() == digest
    assert got.headers["etag"] == f'"{digest}"'
    assert got.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert head.status_code == 200
    assert head.headers["content-length"] == str(len(got.content))
    assert head.content == b""


@pytest.mark.parametrize("tags", ['"{}"', 'W/"{}"', '"other", "{}"', "*"])
def test_who_has_it_does_not_get_it_again(server: RunningServer, digest: str, tags: str) -> None:
    for path in ("", "/manifest"):
        answer = server.client.get(
            f"/v1/artifacts/{digest}{path}", headers={"If-None-Match": tags.replace("{}", digest)}
        )
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == f'"{digest}"'


def test_who_has_another_gets_it(server: RunningServer, digest: str) -> None:
    answer = server.client.get(f"/v1/artifacts/{digest}", headers={"If-None-Match": f'"{digest[:-1]}"'})
    assert answer.status_code == 200


def test_ranges(server: RunningServer, digest: str) -> None:
    whole = server.client.get(f"/v1/artifacts/{digest}").content
    tail = server.client.get(f"/v1/artifacts/{digest}", headers={"Range": f"bytes={len(whole) - 100}-"})
    assert (tail.status_code, tail.content) == (206, whole[-100:])
    outside = server.client.get(f"/v1/artifacts/{digest}", headers={"Range": f"bytes={len(whole)}-"})
    assert (outside.status_code, problem_of(outside)["code"]) == (416, "range-not-satisfiable")
    assert outside.headers["content-range"] == f"bytes */{len(whole)}"
    for nonsense in ("bytes=", "bytes=b-a", "lines=0-1", "bytes=5-2"):  # RFC 9110, 14.2: ignored
        answer = server.client.get(f"/v1/artifacts/{digest}", headers={"Range": nonsense})
        assert (answer.status_code, len(answer.content)) == (200, len(whole))


def test_the_report_has_what_people_want_of_the_manifest(server: RunningServer, digest: str) -> None:
    report = server.client.get(f"/v1/artifacts/{digest}/report").json()
    assert report["artifact"] == digest
    assert report["files"][0]["sha256"] == digest
    assert {"target", "signature", "passes", "schedule", "verification"} <= set(report)


@pytest.mark.parametrize("path", ["0" * 64, "ABC", "..%2f..%2fetc%2fpasswd", "a" * 5000, "%00", "*"])
@pytest.mark.parametrize("below", ["", "/manifest", "/weights"])
def test_what_is_not_there(server: RunningServer, path: str, below: str) -> None:
    answer = server.client.get(f"/v1/artifacts/{path}{below}")
    assert answer.status_code == 404
    assert problem_of(answer)["code"] in ("artifact-not-found", "not-found")


@pytest.mark.slow
def test_a_large_artifact_starts_before_it_was_read_and_a_large_model_is_known(server: RunningServer) -> None:
    model = make_onnx(5120, seed=4)  # 100 MiB of weights
    assert len(model) > 100_000_000
    first = post(server, model, shapes={"weights_mib": 100})
    assert first.headers["cache-status"] == "relaxc; fwd=miss; stored"
    path = f"/v1/artifacts/{first.headers['etag'].strip(chr(34))}"
    process = psutil.Process(server.process.pid)
    before = process.io_counters().read_chars
    with server.client.stream("GET", path) as answer:
        next(answer.iter_raw(1))
        assert process.io_counters().read_chars - before < 50 << 20  # what the sockets took, and not the whole
    again = post(server, model, shapes={"weights_mib": 100})
    assert again.headers["cache-status"] == "relaxc; hit"
    assert again.content == first.content
