"""A job that may reach some TCP ports reaches these, and nothing else of the network."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaxc.service.process.limits import Limits
from relaxc.service.process.pool import Pool
from relaxc.service.process.sandbox import landlock
from relaxc.service.process.sandbox.confinement import Confinement
from relaxc.service.process.task import Flavour, Task

LIMITS = Limits(timeout_s=120.0, memory_bytes=4 << 30, file_bytes=1 << 30)

pytestmark = pytest.mark.skipif(landlock.version() < landlock.TCP, reason="this kernel's Landlock knows no ports")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        pool.warm(Flavour.ONNX)
        yield pool


def test_only_tcp_to_the_ports_that_it_was_given(pool: Pool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"allowed": allowed.getsockname()[1], "other": other.getsockname()[1]}
        confinement = Confinement(ports=(ports["allowed"],))
        task = Task("tests.process.sandbox.reaching:reach", ports, tmp_path, limits=LIMITS, confinement=confinement)
        got = pool.run(task, lambda event: None)["got"]
    assert got.pop("allowed") == "reached"
    assert got.pop("pair") == "reached"
    assert set(got) >= {"other", "udp", "mptcp", "raw", "netlink", "listen", "fast open", "fast open by sendmsg"}
    assert set(got.values()) == {"refused"}, got


def test_none_is_reached_without_any(pool: Pool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        task = Task("tests.process.sandbox.reaching:reach", {"allowed": port, "other": port}, tmp_path, limits=LIMITS)
        got = pool.run(task, lambda event: None)["got"]
    assert got["allowed"] == "refused"
