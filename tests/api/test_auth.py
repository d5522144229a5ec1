"""Keys over HTTP: who is served, who is told to go, and what a page of somebody else may not."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.requests import Request

from relaxc.service.api.auth import Anonymous, Gate
from relaxc.service.errors import Forbidden, RateLimited, Unauthorized
from relaxc.service.jobs.database import audit
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.objects.keys import Keys
from tests.api.conftest import BY_SEED, RunningServer, make_onnx
from tests.api.jobs import ended, submit, uploaded
from tests.waiting import PATIENCE_S

Start = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of our own: once it has a key it serves nobody without."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), BY_SEED)
    yield running
    running.stop()


@pytest.fixture
def keys(server: RunningServer) -> Iterator[Keys]:
    """The server's keys, as `relaxc keys` has them: in another process."""
    with closing(Database(f"sqlite:///{server.cache / 'service.sqlite3'}")) as database:
        yield Keys(database)


@pytest.fixture
def ask(server: RunningServer) -> Callable[..., httpx.Response]:
    """A request with a secret."""

    def make(secret: str | None, method: str = "GET", path: str = "/v1/models", **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {secret}"} if secret is not None else {}
        return server.client.request(method, path, headers=headers, **options)

    return make


Ask = Callable[..., httpx.Response]


# The first test, as afterwards the module's server has keys.
def test_without_keys_loopback_serves_everybody_but_pages_of_others(server: RunningServer) -> None:
    get, port = server.client.get, httpx.URL(server.url).port
    assert get("/v1/models").status_code == 200
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert get("/v1/models", headers={"Host": host}).status_code == 200
    assert get("/v1/models", headers={"Origin": server.url}).status_code == 200
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "0.0.0.0"},
        {"Origin": "http://["},
        {"Origin": "http://[", "Host": "["},
        {"Host": "["},
        {"Host": "[::1"},
        {"Host": "[zz]:80"},
        {"Origin": "http://\u2100.example".encode()},
    ):
        refused = get("/v1/models", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), headers


def test_the_first_key_closes_the_door(server: RunningServer, keys: Keys, ask: Ask) -> None:
    secret = keys.create("first", ["read"]).secret
    time.sleep(1.1)  # what the server may take to see it
    refused = ask(None)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert ask(secret).status_code == 200
    for path in ("/healthz", "/readyz", "/openapi.json", "/problems/unauthorized", "/"):
        assert ask(None, path=path).status_code in (200, 503), path
    assert ask(None, path="/metrics").status_code == 401
    assert ask(secret, path="/metrics").status_code == 200


@pytest.mark.parametrize("header", ["Bearer", "Basic cms6eA==", "rk_", "Bearer rk_a rk_b", "bearer \xff"])
def test_what_is_no_key_is_refused(server: RunningServer, keys: Keys, header: str) -> None:
    refused = server.client.get("/v1/models", headers={"Authorization": header.encode("latin-1")})
    assert refused.status_code == 401


def test_a_scope_that_is_missing_is_named(keys: Keys, ask: Ask) -> None:
    reader = keys.create("reader", ["read"]).secret
    for method, path, scope in (
        ("POST", "/v1/jobs", "compile or tune"),
        ("DELETE", f"/v1/models/{'a' * 64}", "compile"),
    ):
        refused = ask(reader, method, path, json={} if method == "POST" else None)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert refused.json()["fields"]["scope"] == scope
    assert ask(keys.create("all", ["admin"]).secret, "DELETE", f"/v1/models/{'a' * 64}").status_code == 404


def test_a_revoked_and_an_expired_key_are_refused(keys: Keys, ask: Ask) -> None:
    made, brief = keys.create("gone", ["read"]), keys.create("brief", ["read"], expires_s=0.5)
    assert ask(made.secret).status_code == 200
    keys.revoke(made.row.id)
    time.sleep(1.1)
    assert ask(made.secret).status_code == 401
    assert ask(brief.secret).status_code == 401


def test_what_one_key_has_another_does_not_see(server: RunningServer, keys: Keys, ask: Ask) -> None:
    mine, other, admin = (keys.create(name, ["read", "compile"] if name != "admin" else ["admin"]) for name in
                          ("mine", "other", "admin"))  # fmt: skip
    content = make_onnx(4, seed=77)
    made = ask(mine.secret, "POST", "/v1/models", files={"model": ("secret-name.onnx", content)})
    digest = made.json()["digest"]
    job = ask(mine.secret, "POST", "/v1/jobs", json={"kind": "compile", "model": digest}).json()
    for path in (f"/v1/models/{digest}", f"/v1/jobs/{job['id']}", f"/v1/jobs/{job['id']}/logs"):
        unknown = path.replace(job["id"], "j_" + "0" * 22).replace(digest, "0" * 64)
        theirs, nobodys = ask(other.secret, path=path), ask(other.secret, path=unknown)
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.json()["code"] == nobodys.json()["code"]
        assert ask(admin.secret, path=path).status_code == 200
    for path in ("/v1/models", "/v1/jobs"):
        assert digest not in ask(other.secret, path=path).text
        assert digest in ask(mine.secret, path=path).text
    assert ask(other.secret, "POST", "/v1/jobs", json={"kind": "compile", "model": digest}).status_code == 404


@pytest.mark.parametrize(
    ("host", "served"),
    [
        *((host, True) for host in ("10.1.2.3:8000", "[fd00::7]:8000", "localhost", f"{socket.gethostname()}:80")),
        *((host, False) for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "")),
    ],
)
def test_without_auth_a_name_of_another_site_is_refused_too(tmp_path: Path, host: str, served: bool) -> None:
    request = Request({"type": "http", "headers": [(b"host", host.encode())], "client": ("192.0.2.1", 4711)})
    with closing(Database(f"sqlite:///{tmp_path / 'keys.sqlite3'}")) as database:
        gate = Gate(Keys(database), Anonymous.ALWAYS)
        if served:
            assert anyio.run(gate.owner, request, None)
        else:
            with pytest.raises(Forbidden, match="no name of this machine"):
                anyio.run(gate.owner, request, None)


def test_unknown_keys_of_an_address_that_had_its_share_do_not_ask_the_database_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request({"type": "http", "headers": [], "client": ("192.0.2.1", 4711)})
    with closing(Database(f"sqlite:///{tmp_path / 'keys.sqlite3'}")) as database:
        keys = Keys(database)
        right, gate, asked = keys.create("right", ["read"]).secret, Gate(keys, Anonymous.NEVER), []
        monkeypatch.setattr(keys, "find", lambda secret: asked.append(secret) or Keys.find(keys, secret))
        for i in range(60):
            with pytest.raises((Unauthorized, RateLimited)):
                anyio.run(gate.owner, request, "rk_" + f"{i:043d}")
        assert len(asked) < 30
        assert anyio.run(gate.owner, request, right)
        assert anyio.run(gate.owner, request, Keys(database).create("just made", ["read"]).secret)


def test_many_refused_keys_from_one_address_are_slowed_and_a_right_one_never(keys: Keys, ask: Ask) -> None:
    right = keys.create("right", ["read"]).secret
    statuses = [ask("rk_" + f"{i:043d}").status_code for i in range(40)]
    assert 429 in statuses
    assert set(statuses) <= {401, 429}
    slowed = ask("rk_" + "z" * 43)
    assert (slowed.status_code, slowed.json()["code"]) == (429, "rate-limited")
    assert 1 <= int(slowed.headers["retry-after"]) <= 60
    assert ask(right).status_code == 200


def test_what_changes_something_is_in_the_audit_log(server: RunningServer, keys: Keys, ask: Ask) -> None:
    made = keys.create("auditor", ["read", "compile"])
    response = server.client.post(
        "/v1/models",
        files={"model": ("m.onnx", make_onnx(4, seed=78))},
        headers={"Authorization": f"Bearer {made.secret}", "X-Request-Id": "mine-1"},
    )
    assert response.headers["x-request-id"] == "mine-1"
    ask(made.secret, "DELETE", f"/v1/models/{response.json()['digest']}")
    ask(made.secret)
    deadline = time.monotonic() + PATIENCE_S
    rows: list[Any] = []
    while len(rows) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        with keys._database.read() as connection:
            rows = audit.newest(connection, 10, key=made.row.id)
    assert [(row.action, row.outcome, row.address) for row in reversed(rows)] == [
        ("POST /v1/models", "201", "127.0.0.1"),
        ("DELETE /v1/models/{digest}", "204", "127.0.0.1"),
    ]
    assert all(response.json()["digest"] in row.object for row in rows)
    assert rows[-1].detail["request"] == "mine-1"


@pytest.mark.slow
def test_metrics_count_jobs_stages_and_cache(start: Start) -> None:
    server = start()
    digest = uploaded(server, make_onnx(4, seed=79))
    for _ in range(2):
        ended(server, submit(server, digest).json()["id"])
    text = server.client.get("/metrics").text
    for line in (
        'relaxc_cache_requests_total{origin="miss"} 1.0',
        'relaxc_cache_requests_total{origin="hit"} 1.0',
        'relaxc_stage_seconds_count{kind="compile",stage="build"} 1.0',
        'relaxc_jobs_ended_total{kind="compile",state="succeeded"} 1.0',
        "relaxc_children 0.0",
        "relaxc_database_up 1.0",
        'relaxc_workers_ready{flavour="onnx"} 1.0',
        'relaxc_http_request_seconds_count{method="POST",route="/v1/jobs",status="202"} 2.0',
    ):
        assert line in text, line
    server.client.get("/v1/jobs/../../" + "x" * 50)
    server.client.request("BREW", "/coffee")
    routes = {line.split('route="')[1].split('"')[0] for line in server.client.get("/metrics").text.splitlines()
              if 'route="' in line}  # fmt: skip
    assert routes <= {"/v1/jobs", "/v1/jobs/{id}", "/v1/models", "/metrics", "none"}, routes
