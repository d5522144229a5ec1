"""Owners over HTTP: keys of one owner see the same, whoever loses one gets another, an admin sees to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from relaxc.service.jobs.database import audit
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.objects.keys import Keys
from tests.api.conftest import BY_SEED, RunningServer, make_onnx
from tests.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of our own, with an admin."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), BY_SEED)
    made = running.client.post("/v1/keys", json={"name": "operator", "scopes": ["admin"]})
    running.client.headers["Authorization"] = f"Bearer {made.json()['secret']}"
    yield running
    running.stop()


def made(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    """What an admin made."""
    answer = server.client.post(path, json=body)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return dict(answer.json())


def key_of(server: RunningServer, owner: str, *scopes: str) -> dict[str, Any]:
    """A new key of the owner."""
    return made(server, "/v1/keys", name="laptop", owner=owner, scopes=scopes or ["read", "compile"])


def asked(server: RunningServer, key: dict[str, Any], path: str, method: str = "GET", **options: Any) -> httpx.Response:
    """The answer to who has the key."""
    return server.client.request(method, path, headers={"Authorization": f"Bearer {key['secret']}"}, **options)


def test_a_rotated_key_sees_what_the_lost_one_had(server: RunningServer) -> None:
    ann = made(server, "/v1/owners", name="ann")
    lost, other = key_of(server, "ann"), made(server, "/v1/keys", name="ann", scopes=["read"])
    assert lost["owner"] == ann["id"] != other["owner"]
    assert lost["webhook_secret"] is None
    sent = {"model": ("net.onnx", make_onnx(4, seed=90))}
    digest = asked(server, lost, "/v1/models", "POST", files=sent).json()["digest"]
    job = asked(server, lost, "/v1/jobs", "POST", json={"kind": "compile", "model": digest}).json()
    found = made(server, f"/v1/keys/{lost['id']}/rotate")
    assert (found["owner"], found["scopes"], found["name"]) == (ann["id"], lost["scopes"], "laptop")
    for path in (f"/v1/models/{digest}", f"/v1/jobs/{job['id']}"):
        assert asked(server, found, path).status_code == 200
        assert asked(server, other, path).status_code == 404
    assert asked(server, lost, "/v1/models").status_code == 401
    assert server.client.post(f"/v1/keys/{lost['id']}/rotate", json={}).json()["code"] == "invalid-option"
    assert server.client.post("/v1/keys/k_none/rotate", json={}).json()["code"] == "key-not-found"
    until(lambda: asked(server, found, f"/v1/jobs/{job['id']}").json()["state"] == "succeeded")


def test_an_equal_request_by_another_key_of_the_owner_is_the_same_job(server: RunningServer) -> None:
    bob = made(server, "/v1/owners", name="bob")
    keys = [key_of(server, bob["id"]) for _ in range(2)]
    sent = {"model": ("net.onnx", make_onnx(4, seed=91))}
    digest = asked(server, keys[0], "/v1/models", "POST", files=sent).json()["digest"]
    once = {"Idempotency-Key": "once"}
    jobs = [
        server.client.post(
            "/v1/jobs", json={"model": digest}, headers={**once, "Authorization": f"Bearer {key['secret']}"}
        )
        for key in keys
    ]
    assert jobs[0].json()["id"] == jobs[1].json()["id"]


def test_an_admin_changes_disables_and_revokes_and_nobody_else_does(server: RunningServer) -> None:
    eve = made(server, "/v1/owners", name="eve", weight=2.0)
    keys = [key_of(server, "eve") for _ in range(2)]
    here = f"/v1/owners/{eve['id']}"
    for method, path in (("GET", "/v1/owners"), ("GET", here), ("PATCH", here), ("DELETE", f"{here}/keys")):
        refused = asked(server, keys[0], path, method, json={} if method == "PATCH" else None)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
    assert server.client.get(here).json()["weight"] == 2.0
    changed = server.client.patch(here, json={"weight": 3.0, "new_webhook_secret": True}).json()
    assert changed["weight"] == 3.0
    assert changed["webhook_secret"] not in (None, eve["webhook_secret"])
    server.client.patch(here, json={"disabled": True})
    until(lambda: asked(server, keys[0], "/v1/models").status_code == 401)
    assert server.client.patch(here, json={"disabled": False}).json()["webhook_secret"] is None
    until(lambda: asked(server, keys[0], "/v1/models").status_code == 200)
    revoked = server.client.delete(f"{here}/keys").json()["keys"]
    assert {key["id"] for key in revoked} == {key["id"] for key in keys}
    assert all(key["revoked"] for key in revoked)
    assert [asked(server, key, "/v1/models").status_code for key in keys] == [401, 401]
    assert eve["id"] in [row["id"] for row in server.client.get("/v1/owners").json()["owners"]]
    for path in ("/v1/owners/o_none", "/v1/owners/none"):
        assert server.client.get(path).json()["code"] == "owner-not-found"
    unknown = server.client.post("/v1/keys", json={"name": "x", "owner": "nobody", "scopes": ["read"]})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "owner-not-found")


def test_an_admin_neither_disables_itself_nor_revokes_its_last_key(server: RunningServer) -> None:
    mine = server.client.get("/v1/owner").json()["id"]
    key = next(row["id"] for row in server.client.get("/v1/keys").json()["keys"] if row["owner"] == mine)
    here = f"/v1/owners/{mine}"
    for method, path in (("PATCH", here), ("DELETE", f"{here}/keys"), ("DELETE", f"/v1/keys/{key}")):
        body = {"disabled": True} if method == "PATCH" else None
        refused = server.client.request(method, path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "admin-needed"), path
        assert refused.json()["fields"]["who"] == "oneself"
    assert server.client.get(here).json()["disabled"] is None


def test_a_key_rotates_itself_and_no_other(server: RunningServer) -> None:
    ida = made(server, "/v1/owners", name="ida")
    mine, other = key_of(server, ida["id"], "read"), key_of(server, ida["id"])
    refused = asked(server, mine, f"/v1/keys/{other['id']}/rotate", "POST", json={})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    done = asked(server, mine, f"/v1/keys/{mine['id']}/rotate", "POST", json={})
    assert done.status_code == 201, done.text
    new = done.json()
    assert (new["owner"], new["scopes"], new["name"]) == (ida["id"], ["read"], "laptop")
    assert [asked(server, key, "/v1/models").status_code for key in (mine, new, other)] == [401, 200, 200]


def test_a_key_that_rotates_itself_lives_no_longer_by_that(server: RunningServer) -> None:
    key = made(server, "/v1/keys", name="short", scopes=["read"], expires_s=1000)
    ends = [key["expires"]]
    for _ in range(3):
        key = asked(server, key, f"/v1/keys/{key['id']}/rotate", "POST", json={}).json()
        ends.append(key["expires"])
    assert len(set(ends)) == 1
    late = asked(server, key, f"/v1/keys/{key['id']}/rotate", "POST", json={"grace_s": 1e6}).json()
    old = next(row for row in server.client.get("/v1/keys").json()["keys"] if row["id"] == key["id"])
    assert {late["expires"], old["expires"]} == set(ends)


def test_an_owner_makes_itself_not_any_number_of_keys(server: RunningServer) -> None:
    key = made(server, "/v1/keys", name="busy", scopes=["read"])
    answers = []
    for _ in range(60):
        answer = asked(server, key, f"/v1/keys/{key['id']}/rotate", "POST", json={})
        answers.append(answer.status_code)
        if answer.status_code != 201:
            break
        key = answer.json()
    assert answers[-1] == 429
    assert int(answer.headers["retry-after"]) > 0
    assert made(server, f"/v1/keys/{key['id']}/rotate")["owner"] == key["owner"]  # an admin's hand is not counted


@pytest.mark.slow
def test_the_audit_log_names_owner_and_key(server: RunningServer) -> None:
    ann = made(server, "/v1/owners", name="audited")
    keys = [key_of(server, ann["id"]) for _ in range(2)]
    for key in keys:
        asked(server, key, f"/v1/models/{'a' * 64}", "DELETE")
    with closing(Database(f"sqlite:///{server.cache / 'service.sqlite3'}")) as database:

        def rows() -> list[tuple[str, str]]:
            with database.read() as connection:
                found = audit.newest(connection, 100)
            return sorted((row.owner, row.key) for row in found if row.owner == ann["id"])

        deadline = time.monotonic() + PATIENCE_S
        while len(rows()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert rows() == sorted((ann["id"], key["id"]) for key in keys)
        assert {row.id for row in Keys(database).list(ann["id"])} == {key["id"] for key in keys}
