"""Webhooks: signed, tried again, kept over a restart, and sent to public addresses only."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpcore
import pytest
import sqlalchemy as sa

from relaxc.service.config import Settings
from relaxc.service.errors import InvalidOption
from relaxc.service.jobs.database import deliveries, expired, transitions
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.tables import deliveries as table
from relaxc.service.jobs.webhooks import deliver as webhooks
from relaxc.service.jobs.webhooks.deliver import Webhooks, check_url
from relaxc.service.jobs.webhooks.public_network import PublicNetwork, is_public
from tests.jobs.rows import claim, put
from tests.waiting import PATIENCE_S


class Receiver:
    """An HTTP server on loopback that answers with `statuses`, the last of them for ever."""

    def __init__(self, *statuses: int, slow_s: float = 0.0) -> None:
        self.calls: list[tuple[dict[str, str], bytes]] = []
        self.statuses = list(statuses)
        self.at_once = self.most_at_once = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.calls.append((dict(self.headers), body))
                receiver.at_once += 1
                receiver.most_at_once = max(receiver.most_at_once, receiver.at_once)
                time.sleep(slow_s)
                receiver.at_once -= 1
                status = receiver.statuses.pop(0) if len(receiver.statuses) > 1 else receiver.statuses[0]
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", receiver.url + "elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receive() -> Iterator[Callable[..., Receiver]]:
    opened: list[Receiver] = []

    def make(*statuses: int, **options: float) -> Receiver:
        opened.append(Receiver(*statuses, **options))
        return opened[-1]

    yield make
    for receiver in opened:
        receiver.close()


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "settings", lambda: Settings(webhook_private=True))
    monkeypatch.setattr(webhooks, "_FIRST_RETRY_S", 0.05)


def end_a_job(database: Database, url: str, owner: str = "k_a") -> str:
    put(database, webhook=url, owner=owner)
    job = claim(database)
    assert job is not None
    with database.begin() as connection:
        transitions.end(connection, job, Outcome(artifact="a" * 64))
    return job.id


def settled(database: Database, count: int = 1) -> list[sa.Row[tuple[object, ...]]]:
    """The deliveries, once none waits."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with database.read() as connection:
            rows = list(connection.execute(sa.select(table)).all())
        if len(rows) == count and all(row.state != "waiting" for row in rows):
            return rows
        time.sleep(0.05)
    raise AssertionError(rows)


@pytest.mark.usefixtures("private")
def test_the_end_of_a_job_is_told_and_signed(database: Database, receive: Callable[..., Receiver]) -> None:
    receiver = receive(200)
    id = end_a_job(database, receiver.url)
    hooks = Webhooks(database, lambda owner: f"whsec_{owner}")
    (row,) = settled(database)
    hooks.close()
    assert (row.state, row.attempts) == ("delivered", 1)
    ((headers, body),) = receiver.calls
    time_sent, mac = (part.partition("=")[2] for part in headers["Relaxc-Signature"].split(","))
    wanted = hmac.new(b"whsec_k_a", f"{time_sent}.".encode() + body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(mac, wanted)
    assert abs(int(time_sent) - time.time()) < PATIENCE_S
    told = json.loads(body)
    assert (told["event"], told["job"]["id"], told["job"]["state"]) == ("job.done", id, "succeeded")


@pytest.mark.usefixtures("private")
def test_a_call_is_tried_again_until_it_arrives(database: Database, receive: Callable[..., Receiver]) -> None:
    receiver = receive(500, 503, 302, 204)
    end_a_job(database, receiver.url)
    hooks = Webhooks(database, lambda owner: None)
    (row,) = settled(database)
    hooks.close()
    assert (row.state, row.attempts) == ("delivered", 4)
    assert "Relaxc-Signature" not in receiver.calls[0][0]
    assert len(receiver.calls) == 4  # no redirect was followed


@pytest.mark.usefixtures("private")
def test_a_receiver_that_is_gone_is_given_up(
    database: Database, receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_GIVE_UP_S", 0.3)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    for url in (receive(410).url, nobody):
        end_a_job(database, url)
    hooks = Webhooks(database, lambda owner: None)
    rows = settled(database, 2)
    hooks.close()
    assert {row.state for row in rows} == {"failed"}
    assert {row.last_error.partition(":")[0] for row in rows} == {"the receiver answered 410", "ConnectError"}


@pytest.mark.usefixtures("private")
def test_a_slow_receiver_is_cut_off(
    database: Database, receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(webhooks, "_GIVE_UP_S", 0.0)
    end_a_job(database, receive(200, slow_s=1.0).url)
    hooks = Webhooks(database, lambda owner: None)
    (row,) = settled(database)
    hooks.close()
    assert row.state == "failed"
    assert "Timeout" in row.last_error


@pytest.mark.usefixtures("private")
def test_what_a_killed_server_was_sending_is_sent_again(
    database: Database, receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = receive(200)
    end_a_job(database, receiver.url)
    with database.begin() as connection:
        taken = deliveries.take_due(connection, "k_a", hold_s=3)
        assert taken is not None
        assert deliveries.take_due(connection, "k_a", hold_s=3) is None  # it is somebody's for now
    hooks = Webhooks(database, lambda owner: None)
    (row,) = settled(database)
    hooks.close()
    assert (row.state, row.attempts, len(receiver.calls)) == ("delivered", 2, 1)


@pytest.mark.sampled("sqlite")
@pytest.mark.usefixtures("private")
def test_one_key_does_not_hold_up_anothers_calls(database: Database, receive: Callable[..., Receiver]) -> None:
    slow, quick = receive(200, slow_s=0.5), receive(200)
    for _ in range(8):
        end_a_job(database, slow.url, "k_slow")
    for _ in range(4):
        end_a_job(database, quick.url, "k_quick")
    hooks = Webhooks(database, lambda owner: None)
    rows = settled(database, 12)
    hooks.close()
    assert {row.state for row in rows} == {"delivered"}
    assert (slow.most_at_once, quick.most_at_once) == (1, 1)


@pytest.mark.usefixtures("private")
def test_owners_take_turns(database: Database, receive: Callable[..., Receiver]) -> None:
    receiver = receive(200)
    ids = {end_a_job(database, receiver.url, owner): owner for owner in ("k_a",) * 3 + ("k_b",) * 3}
    hooks = Webhooks(database, lambda owner: None, threads=1)
    settled(database, 6)
    hooks.close()
    assert [ids[headers["Relaxc-Job"]] for headers, _ in receiver.calls] == ["k_a", "k_b"] * 3


@pytest.mark.usefixtures("private")
def test_the_webhooks_of_equal_requests_are_called_too(database: Database, receive: Callable[..., Receiver]) -> None:
    first, second = receive(200), receive(200)
    put(database, webhook=first.url)
    job = claim(database)
    assert job is not None
    with database.begin() as connection:
        assert all(deliveries.hold(connection, job, url) for url in (first.url, second.url, second.url))
        expired.remove_deliveries(connection, time.time() + 60, 10)
    hooks = Webhooks(database, lambda owner: None)
    time.sleep(0.2)
    assert second.calls == []
    with database.begin() as connection:
        transitions.end(connection, job, Outcome(artifact="a" * 64))
    hooks.wake()
    settled(database, 2)
    hooks.close()
    assert [len(receiver.calls) for receiver in (first, second)] == [1, 1]
    assert first.calls[0][1] == second.calls[0][1]


def test_a_job_has_no_more_than_some_webhooks(database: Database) -> None:
    job = put(database)
    with database.begin() as connection:
        told = [deliveries.hold(connection, job, f"http://example.com/{i}") for i in range(20)]
    assert told == [True] * 16 + [False] * 4


def test_private_addresses_are_refused_where_the_name_leads_there(
    database: Database, receive: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = receive(200)
    port = receiver.server.server_port

    def rebound(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    end_a_job(database, f"http://hooks.example.com:{port}/")
    hooks = Webhooks(database, lambda owner: None)
    (row,) = settled(database)
    hooks.close()
    assert (row.state, receiver.calls) == ("failed", [])
    assert "no public address" in row.last_error


def test_a_name_that_nobody_answers_for_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(PATIENCE_S))
    network = PublicNetwork(time.monotonic() + 0.05)
    with pytest.raises(httpcore.ConnectTimeout, match="was not found in time"):
        network.connect_tcp("hooks.example.com", 443)
    assert not answered.is_set()
    answered.set()


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("64:ff9b:1::808:808", False),
        ("fec0::1", False),
        ("::7f00:1", False),
        ("100::1", False),
        ("5f00::1", False),
        ("2001:db8::1", False),
        ("3fff:100::1", False),
        ("2002:7f00:1::", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("localhost", False),
        ("x.localhost", False),
        ("example.com", None),
        ("2130706433", False),
        ("0x7f.1", False),
        ("0177.0.0.1", False),
        ("127.1", False),
        ("127.0.0.1.", False),
        ("localhost.", False),
        ("1.example.com", None),
    ],
)
def test_which_addresses_are_public(host: str, public: bool | None) -> None:
    assert is_public(host) is public


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "http://",
        "http://user:pw@example.com/",
        "http://127.0.0.1:8000/",
        "http://[::1]/",
        "http://localhost/",
        "http://example.com:99999/",
        "http://exa mple.com/",
        "http://example.com/\r\nX: y",
        "http://example.com/" + "x" * 3000,
        "file:///etc/passwd",
        "http://ex\u00e4mple.com/",
    ],
)
def test_urls_that_no_webhook_has(url: str) -> None:
    with pytest.raises(InvalidOption):
        check_url(url)


def test_a_public_url_is_taken() -> None:
    check_url("https://hooks.example.com:8443/relaxc?token=1")
