"""A bucket that hangs: a real HTTP server that takes what it is sent and does not answer, or never comes to an end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from relaxc.service.config import Settings
from relaxc.service.errors import StoreUnreachable
from relaxc.service.jobs.blobs import s3 as s3_module
from relaxc.service.jobs.blobs.s3 import S3Blobs
from tests.waiting import PATIENCE_S, until

BUCKET = "s3://relaxc-test/prefix"


class Hanging(ThreadingHTTPServer):
    """Answers as an empty bucket does until `hangs` is set; `asked` counts the requests."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hangs, self.over = threading.Event(), threading.Event()
        self.asked = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hanging

    def _answer(self) -> None:
        with self.server.lock:
            self.server.asked += 1
        if self.server.hangs.is_set() and self.command != "HEAD":
            if self.command == "GET":  # a body that never ends, a byte at a time
                self._answered(1 << 20)
                while not self.server.over.wait(0.05):
                    self.wfile.write(b"x")
            self.server.over.wait(PATIENCE_S)
            self.close_connection = True
            return
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answered(1 << 20 if self.command == "HEAD" else 0)

    def _answered(self, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.send_header("ETag", '"0"')
        self.end_headers()

    do_GET = do_HEAD = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(s3_module, "settings", lambda: Settings(s3_timeout_s=1.0))
    with Hanging() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.over.set()
        server.shutdown()
        serving.join()


def opened(bucket: Hanging, rest_s: float = PATIENCE_S) -> S3Blobs:
    return S3Blobs(BUCKET, f"http://127.0.0.1:{bucket.server_port}", rest_s=rest_s)


def test_each_call_ends_with_a_named_503_and_the_next_does_not_wait(bucket: Hanging, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    blobs = opened(bucket)
    blobs.put("models/a/b", tmp_path / "file")
    bucket.hangs.set()
    with pytest.raises(StoreUnreachable) as caught:
        blobs.put("models/a/b", tmp_path / "file")
    assert (caught.value.http_status, caught.value.code) == (503, "store-unreachable")
    asked = bucket.asked
    for call in (
        lambda: blobs.put("models/a/b", tmp_path / "file"),
        lambda: blobs.fetch("models/a/b", tmp_path / "other"),
        lambda: blobs.remove("models/a/b"),
    ):
        with pytest.raises(StoreUnreachable, match="not asked now"):
            call()
    assert bucket.asked == asked
    blobs.close()


def test_a_body_that_never_ends_has_a_deadline_too(bucket: Hanging, tmp_path: Path) -> None:
    blobs = opened(bucket)
    bucket.hangs.set()
    with pytest.raises(StoreUnreachable, match="has not answered in"):
        blobs.fetch("models/a/b", tmp_path / "file")
    blobs.close()


def test_it_is_asked_again_once_it_has_rested(bucket: Hanging, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    blobs = opened(bucket, rest_s=0.1)
    bucket.hangs.set()
    with pytest.raises(StoreUnreachable):
        blobs.put("models/a/b", tmp_path / "file")
    bucket.hangs.clear()

    def answers() -> bool:
        try:
            blobs.put("models/a/b", tmp_path / "file")
        except StoreUnreachable:
            return False
        return True

    until(answers)
    blobs.close()


def test_few_wait_for_it_at_once_and_nobody_for_long(bucket: Hanging, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    blobs = opened(bucket)
    bucket.hangs.set()
    refused: list[str] = []

    def put() -> None:
        try:
            blobs.put("models/a/b", tmp_path / "file")
        except StoreUnreachable as error:
            refused.append(error.message)

    callers = [threading.Thread(target=put) for _ in range(60)]
    for caller in callers:
        caller.start()
    most = 0
    while any(caller.is_alive() for caller in callers):
        most = max(most, sum(thread.name == "bucket" for thread in threading.enumerate()))
        callers[-1].join(0.02)
    assert len(refused) == 60
    assert 0 < most <= 16
    blobs.close()
