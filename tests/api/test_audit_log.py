"""The audit log over HTTP and on the command line: an admin's, filtered, paged, exported."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.api.conftest import BY_SEED, RunningServer
from tests.cli.conftest import Relaxc, called, cli_env
from tests.waiting import until

__all__ = ["called", "cli_env"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with an admin, who has made some keys and revoked one."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), BY_SEED)
    made = running.client.post("/v1/keys", json={"name": "operator", "scopes": ["admin"]}).json()
    running.client.headers["Authorization"] = f"Bearer {made['secret']}"
    running.client.headers["X-Admin"] = made["id"]
    for number in range(5):
        key = running.client.post("/v1/keys", json={"name": str(number), "scopes": ["read"]}).json()
    running.client.delete(f"/v1/keys/{key['id']}")
    running.client.delete("/v1/models/%1b%5b31m")
    until(lambda: len(rows(running)) == 8)
    yield running
    running.stop()


def rows(server: RunningServer, **filters: str) -> list[dict[str, str]]:
    answer = server.client.get("/v1/audit", params=filters)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["rows"])


def test_an_admin_reads_it_page_by_page(server: RunningServer) -> None:
    admin = server.client.headers["X-Admin"]
    found = rows(server)
    assert [row["action"] for row in found[:2]] == ["DELETE /v1/models/{digest}", "DELETE /v1/keys/{id}"]
    assert {row["key"] for row in found} == {admin, "k_local"}
    assert len(rows(server, action="POST /v1/keys", key=admin)) == 5
    first = server.client.get("/v1/audit", params={"limit": "3"}).json()
    second = rows(server, limit="1000", cursor=first["next"])
    assert first["rows"] + second == found
    assert rows(server, since=found[2]["time"]) == found[:3]
    assert rows(server, until="2000-01-01T00:00:00Z") == []
    times = [{"since": "yesterday"}, {"since": "2026-11-21T08:00"}, {"since": "0.5"}, {"until": "2026-13-21T08:00:00Z"}]
    for wrong in (*times, {"cursor": "x"}, {"whose": "mine"}):
        assert server.client.get("/v1/audit", params=wrong).json()["code"] in ("invalid-request", "invalid-option")


def test_an_export_has_a_row_a_line(server: RunningServer) -> None:
    answer = server.client.get("/v1/audit/export", params={"action": "POST /v1/keys"})
    assert answer.headers["content-type"] == "application/jsonl"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines == rows(server, action="POST /v1/keys")[::-1]


def test_it_is_nobody_elses(server: RunningServer) -> None:
    made = server.client.post("/v1/keys", json={"name": "reader", "scopes": ["read", "compile", "tune"]}).json()
    for path in ("/v1/audit", "/v1/audit/export"):
        refused = server.client.get(path, headers={"Authorization": f"Bearer {made['secret']}"})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_the_command_shows_it_from_here_and_from_there(server: RunningServer, called: Relaxc) -> None:
    here = {"RELAXC_CACHE_DIR": str(server.cache)}
    key = {"RELAXC_API_KEY": server.client.headers["Authorization"].removeprefix("Bearer ")}
    wanted = ("audit", "--action", "DELETE /v1/keys/{id}", "--json", "--limit", "0")
    local, remote = called(*wanted, **here), called("--server", server.url, *wanted, **key)
    assert local.returncode == remote.returncode == 0, local.stderr + remote.stderr
    assert local.stdout == remote.stdout
    assert [json.loads(line) for line in local.stdout.splitlines()] == rows(server, action="DELETE /v1/keys/{id}")
    shown = called("audit", "--limit", "3", **here).stdout
    assert "POST /v1/keys" in shown
    assert "\x1b" not in called("audit", "--limit", "0", **here).stdout
    assert called("audit", "--since", "yesterday", **here).returncode == 2


def test_a_secret_in_the_place_of_an_id_is_not_kept(server: RunningServer) -> None:
    secret = f"rk_{'S3cret' * 7}x"
    assert server.client.delete(f"/v1/keys/{secret}").status_code == 404
    until(lambda: any(row["object"] == "rk_…" for row in rows(server)))
    assert secret not in server.client.get("/v1/audit/export").text
