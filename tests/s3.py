"""An S3 service of the test session's own: moto's, over HTTP on a port of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.waiting import PATIENCE_S

__all__ = ["BUCKET", "CREDENTIALS", "running_s3"]

BUCKET = "relaxc-test"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
"""What the environment of who uses it needs."""


@contextmanager
def running_s3(log: Path) -> Iterator[str]:
    """Give the URL of one with an empty bucket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                assert httpx.get(url, timeout=PATIENCE_S).status_code < 500
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline, log.read_text()
                assert process.poll() is None, log.read_text()
                time.sleep(0.2)
        assert httpx.put(f"{url}/{BUCKET}", timeout=PATIENCE_S).status_code == 200
        yield url
    finally:
        process.terminate()
        process.wait(30)
