"""What a client may hold: a header that does not end, a body that drips, too many connections, what is no HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from relaxc.service.api import connections as connections_module
from relaxc.service.api.connections import Connection
from relaxc.service.config import Settings
from tests.api.conftest import RunningServer, make_onnx
from tests.api.test_compile import post
from tests.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that waits for nobody for long."""
    running = RunningServer(
        tmp_path_factory.mktemp("cache"),
        "tests.jobs.entries:by_seed",
        header_timeout_s=3,
        body_timeout_s=2,
    )
    yield running
    running.stop()


def connect(server: RunningServer) -> socket.socket:
    """A bare connection."""
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname or "", address.port or 0), timeout=PATIENCE_S)


def answered(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(1 << 16):
            found += chunk
    return found


def problem_in(answer: bytes) -> tuple[int, str]:
    """Status and code of a raw answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    return int(head.split()[1]), json.loads(body)["code"]


def drip(connection: socket.socket, data: bytes, every_s: float = 0.1) -> bool:
    """Sends a byte at a time; whether the server had enough before all were sent."""
    try:
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(every_s)
    except ConnectionError:
        return True
    return False


@pytest.mark.slow
def test_a_header_that_drips_is_cut_off(hurried: RunningServer) -> None:
    with connect(hurried) as connection:
        assert drip(connection, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * 600)
        assert answered(connection) == b""
    assert hurried.client.get("/healthz").status_code == 200


def test_a_second_header_that_drips_is_cut_off(hurried: RunningServer) -> None:
    with connect(hurried) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in connection.recv(1 << 16)
        assert drip(connection, b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 600)


def test_a_connection_that_says_nothing_is_closed(hurried: RunningServer) -> None:
    with connect(hurried) as connection:
        assert answered(connection) == b""


@pytest.mark.sampled("/v1/compile")
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/compile", "/v1/models", f"/v1/uploads/{'0' * 64}"])
def test_a_body_that_drips_is_answered_with_408(hurried: RunningServer, path: str) -> None:
    method = "PUT" if "uploads" in path else "POST"
    kind = "application/json" if "jobs" in path else "multipart/form-data; boundary=BB"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: 1000\r\n\r\n"
    with connect(hurried) as connection:
        connection.sendall(head.encode())
        drip(connection, b"-" * 30)
        assert problem_in(answered(connection)) == (408, "request-timeout")
    assert not list(hurried.cache.glob("jobs/*/upload-*"))


def test_what_is_no_http_gets_a_problem(hurried: RunningServer) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"):
        with connect(hurried) as connection:
            connection.sendall(nonsense)
            assert problem_in(answered(connection)) == (400, "bad-request")


@pytest.mark.parametrize(
    "lengths", ["Content-Length: 4\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 4"]
)
def test_a_body_with_two_lengths_is_refused_and_hides_no_second_request(hurried: RunningServer, lengths: str) -> None:
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{lengths}\r\n\r\n"
    with connect(hurried) as connection:
        connection.sendall(head.encode() + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = answered(connection)
    assert problem_in(answer) == (400, "bad-request")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_header_over_the_limit_gets_a_problem(hurried: RunningServer) -> None:
    with connect(hurried) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 100_000)
        assert problem_in(answered(connection)) == (400, "bad-request")


def _status(server: RunningServer, request: bytes) -> int:
    with connect(server) as connection:
        connection.sendall(request)
        return int(connection.recv(100).split()[1])


_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_WAITS = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"


def test_idle_connections_make_room_and_those_at_work_do_not(start: Callable[..., RunningServer]) -> None:
    """Who has sent no whole header is closed for the next; bodies that are on their way are not."""
    server = start(header_timeout_s=2 * PATIENCE_S, body_timeout_s=2 * PATIENCE_S, max_connections=20)
    with contextlib.ExitStack() as held:
        for _ in range(60):
            connection = held.enter_context(connect(server))
            connection.sendall(b"POST /v1/compile HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        assert _status(server, _HEALTH) == 200
        assert post(server, make_onnx(4, seed=60)).status_code == 200

        def is_full_with_one_more() -> bool:
            held.enter_context(connect(server)).sendall(_WAITS)
            return _status(server, _HEALTH) == 503

        until(is_full_with_one_more)
        with connect(server) as connection:
            connection.sendall(_HEALTH)
            assert problem_in(answered(connection)) == (503, "too-many-connections")
    until(lambda: _status(server, _HEALTH) == 200)


def test_a_client_that_reads_nothing_holds_little(server: RunningServer) -> None:
    big = post(server, make_onnx(4, seed=61), shapes={"weights_mib": 64})
    digest = big.headers["etag"].strip('"')
    with contextlib.ExitStack() as held:
        for _ in range(16):
            connection = held.enter_context(connect(server))
            connection.sendall(f"GET /v1/artifacts/{digest} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert server.client.get("/healthz").status_code == 200
        assert server.client.get(f"/v1/artifacts/{digest}").content == big.content


class _Wire:
    """A transport with so many bytes that it has not sent."""

    def __init__(self, unsent: int) -> None:
        self.unsent, self.is_open = unsent, True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_open = False


def test_a_connection_whose_answer_is_still_being_sent_makes_room_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be cut off, though the application has given all of it."""
    monkeypatch.setattr(connections_module, "settings", lambda: Settings(max_connections=3))
    wires = [_Wire(100), _Wire(0), _Wire(0)]
    connections: set[Connection] = set()
    for age, wire in enumerate(wires):
        made: Any = Connection.__new__(Connection)
        made.connections, made.client, made.cycle, made.transport = connections, ("::1", age), None, wire
        made._idle_since = float(age)
        connections.add(made)
    for at, left in enumerate(([True, True, True], [True, False, True], [True, False, False])):
        assert [wire.is_open for wire in wires] == left
        newest: Any = Connection.__new__(Connection)
        newest.connections = connections
        assert newest._make_room() == (at < 3)
    assert not wires[0].is_open
