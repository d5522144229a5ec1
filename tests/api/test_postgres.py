"""The calls that keep something, over PostgreSQL: models, uploads, jobs, events, pages, idempotency, keys."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.conftest import BY_SEED, RunningServer, make_onnx
from tests.api.jobs import ended, parsed, submit, uploaded
from tests.api.test_compile import post, problem_of
from tests.postgres import postgres, postgres_server
from tests.waiting import until

__all__ = ["postgres", "postgres_server"]


@pytest.fixture
def over_postgres(postgres: str, tmp_path: Path) -> Iterator[RunningServer]:
    """A server whose database is an empty PostgreSQL."""
    running = RunningServer(tmp_path / "cache", BY_SEED, database_url=postgres)
    yield running
    running.stop()


def test_the_calls_over_postgresql(over_postgres: RunningServer) -> None:
    server = over_postgres
    content = make_onnx(64, seed=70)
    digest, size = hashlib.sha256(content).hexdigest(), len(content)
    for start, end in ((0, 9000), (9000, size)):
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        answer = server.client.put(
            f"/v1/uploads/{digest}?name=n\u00e4.onnx", content=content[start:end], headers=headers
        )
    assert (answer.status_code, answer.json()["name"]) == (201, "n\u00e4.onnx")
    assert uploaded(server, content) == digest

    key = {"Idempotency-Key": str(uuid.uuid4())}
    first = submit(server, digest, headers=key).json()
    assert ended(server, first["id"])["state"] == "succeeded"
    assert submit(server, digest, headers=key).json()["id"] == first["id"]
    assert problem_of(submit(server, digest, headers=key, priority=1))["code"] == "idempotency-conflict"
    with server.client.stream("GET", f"/v1/jobs/{first['id']}/events", headers={"Last-Event-ID": "1"}) as events:
        story = list(parsed(events.iter_lines()))
    assert [number for number, _, _ in story] == list(range(2, len(story) + 2))
    assert story[-1][1] == "done"

    failed = ended(server, submit(server, digest, "refuse").json()["id"])
    assert failed["error"]["code"] == "unsupported-model"
    sleeping = submit(server, digest, "sleep").json()
    until(server.is_at_work)
    assert server.client.delete(f"/v1/jobs/{sleeping['id']}").status_code == 202
    assert ended(server, sleeping["id"])["state"] == "cancelled"

    pages, query = [], {"model": digest, "limit": "1"}
    while True:
        page = server.client.get("/v1/jobs", params=query).json()
        pages += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert pages == [sleeping["id"], failed["id"], first["id"]]

    assert post(server, make_onnx(4, seed=71)).headers["cache-status"] == "relaxc; fwd=miss; stored"
    assert server.client.delete(f"/v1/models/{digest}").status_code == 204
    assert problem_of(submit(server, digest))["code"] == "model-not-found"


def test_a_path_that_no_database_takes_does_not_end_the_audit_log(over_postgres: RunningServer) -> None:
    client = over_postgres.client
    assert client.delete("/v1/models/a%00b").status_code == 404
    assert client.delete(f"/v1/models/{'a' * 64}").status_code == 404
    until(lambda: len(client.get("/v1/audit").json()["rows"]) == 2)
    found = [row["object"] for row in client.get("/v1/audit").json()["rows"]]
    assert found == ["a" * 64, "a\N{REPLACEMENT CHARACTER}b"]


@pytest.mark.slow
def test_keys_over_postgresql(over_postgres: RunningServer) -> None:
    server = over_postgres
    made = {}
    for name, scopes in (("admin", ["admin"]), ("a", ["read", "compile"]), ("b", ["read", "compile"]), ("c", ["read"])):
        answer = server.client.post("/v1/keys", json={"name": name, "scopes": scopes})
        assert answer.status_code == 201, answer.text
        made[name] = answer.json()
        server.client.headers["Authorization"] = f"Bearer {made['admin']['secret']}"
    see = {name: {"Authorization": f"Bearer {key['secret']}"} for name, key in made.items()}

    files = {"model": ("net.onnx", make_onnx(4, seed=72))}
    model = server.client.post("/v1/models", files=files, headers=see["a"]).json()["digest"]
    job = server.client.post("/v1/jobs", json={"model": model}, headers=see["a"]).json()
    for path in (f"/v1/models/{model}", f"/v1/jobs/{job['id']}"):
        statuses = [server.client.get(path, headers=see[name]).status_code for name in ("a", "b", "admin")]
        assert statuses == [200, 404, 200]
    refused = server.client.post("/v1/models", files=files, headers=see["c"])
    assert (refused.status_code, problem_of(refused)["code"]) == (403, "forbidden")
    tune = server.client.post("/v1/jobs", json={"kind": "tune", "model": model}, headers=see["a"])
    assert (tune.status_code, problem_of(tune)["fields"]["scope"]) == (403, "tune")

    assert server.client.delete(f"/v1/keys/{made['a']['id']}").json()["revoked"]
    until(lambda: server.client.get("/v1/models", headers=see["a"]).status_code == 401)
    listed = server.client.get("/v1/keys")
    assert len(listed.json()["keys"]) == 4
    assert "secret" not in listed.text.replace("webhook_secret", "secret")
    unknown = server.client.delete("/v1/keys/k_000000000000")
    assert (unknown.status_code, problem_of(unknown)["code"]) == (404, "key-not-found")
