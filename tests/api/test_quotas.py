"""Quotas over HTTP: refused before the bytes come, with what is used, the limit and when to come again; and shown."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from relaxc.service.client import Client
from relaxc.service.errors import StorageQuotaExceeded
from tests.api.conftest import BY_SEED, RunningServer, make_onnx
from tests.api.jobs import options_of
from tests.jobs.entries import seed_of
from tests.waiting import until

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of our own, with an admin; an owner may have 3 MiB."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), BY_SEED, quota_bytes=3 * MIB, quota_tuning_hours=2)
    made = running.client.post("/v1/keys", json={"name": "operator", "scopes": ["admin"]})
    running.client.headers["Authorization"] = f"Bearer {made.json()['secret']}"
    yield running
    running.stop()


@pytest.fixture
def ann(server: RunningServer) -> Iterator[httpx.Client]:
    """A new owner's key."""
    made = server.client.post("/v1/keys", json={"name": "ann", "scopes": ["read", "compile", "tune"]}).json()
    headers = {"Authorization": f"Bearer {made['secret']}", "Owner": made["owner"]}
    with httpx.Client(base_url=server.url, headers=headers, timeout=server.client.timeout) as client:
        yield client


def quotas(client: httpx.Client) -> dict[str, Any]:
    """Hers."""
    return dict(client.get("/v1/owner").json()["quotas"])


def allow(server: RunningServer, ann: httpx.Client, **own: Any) -> None:
    """Give her quotas of her own."""
    changed = server.client.patch(f"/v1/owners/{ann.headers['Owner']}", json={"quotas": own})
    assert changed.status_code == 200, changed.text


def test_everybody_sees_quotas_and_use_and_an_admin_those_of_all(server: RunningServer, ann: httpx.Client) -> None:
    shown = ann.get("/v1/owner").json()
    assert (shown["id"], shown["name"]) == (ann.headers["Owner"], "ann")
    assert shown["quotas"] == {
        "queued_jobs": {"limit": 32, "used": 0},
        "running_jobs": {"limit": None, "used": 0},
        "bytes": {"limit": 3 * MIB, "used": 0},
        "tuning_hours": {"limit": 2, "used": 0, "days": 30},
    }
    allow(server, ann, bytes="unlimited", running_jobs=2)
    assert server.client.get(f"/v1/owners/{ann.headers['Owner']}").json()["quotas"] == quotas(ann)
    assert (quotas(ann)["bytes"]["limit"], quotas(ann)["running_jobs"]["limit"]) == (None, 2)
    allow(server, ann, bytes="default")
    assert quotas(ann)["bytes"]["limit"] == 3 * MIB
    for wrong in ({"bytes": -1}, {"bytes": "lots"}, {"disk": 1}, {"tuning_hours": True}):
        refused = server.client.patch(f"/v1/owners/{ann.headers['Owner']}", json={"quotas": wrong})
        assert refused.status_code == 422, wrong
    reader = server.client.post("/v1/keys", json={"name": "r", "scopes": ["read"], "owner": shown["id"]}).json()
    with Client(server.url, reader["secret"]) as client:
        assert client.quota()["quotas"] == quotas(ann)


def test_an_upload_that_does_not_fit_is_refused_before_its_bytes_come(ann: httpx.Client) -> None:
    address, size = ann.base_url, 4 * MIB
    for line in (f"PUT /v1/uploads/{'a' * 64}", "POST /v1/models", "POST /v1/compile"):
        head = (
            f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {ann.headers['Authorization']}\r\n"
            f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {size + MIB}\r\n\r\n"
        )
        with socket.create_connection((address.host, address.port or 80)) as connection:
            connection.sendall(head.encode())  # and nothing more
            answer = connection.makefile("rb").readline()
        assert answer.split()[1] == b"507", line
    part = {"Content-Range": f"bytes 0-9/{size}"}
    refused = ann.put(f"/v1/uploads/{'a' * 64}", content=b"0123456789", headers=part)
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["retryable"]) == (507, "storage-quota-exceeded", False)
    assert problem["fields"] == {"quota": "bytes", "limit": 3 * MIB, "used": 0, "asked": size}
    assert "retry-after" not in refused.headers
    assert "DELETE /v1/models" in problem["remedy"]
    assert quotas(ann)["bytes"]["used"] == 0


def test_uploads_that_are_on_their_way_have_their_room(ann: httpx.Client) -> None:
    data = os.urandom(2 * MIB)
    digest = hashlib.sha256(data).hexdigest()
    part = {"Content-Range": f"bytes 0-9/{len(data)}"}
    assert ann.put(f"/v1/uploads/{digest}", content=data[:10], headers=part).status_code == 202
    assert quotas(ann)["bytes"]["used"] == 2 * MIB
    other = ann.put(f"/v1/uploads/{'b' * 64}", content=data)
    assert other.json()["code"] == "storage-quota-exceeded"
    rest = {"Content-Range": f"bytes 10-{len(data) - 1}/{len(data)}"}
    refused = ann.put(f"/v1/uploads/{digest}", content=data[10:], headers=rest)
    assert refused.json()["code"] == "unknown-format"
    assert quotas(ann)["bytes"]["used"] == 0


def test_an_upload_that_was_begun_is_listed_and_dropped(server: RunningServer, ann: httpx.Client) -> None:
    sha256, size = "c" * 64, 2 * MIB
    here = f"/v1/uploads/{sha256}"
    part = {"Content-Range": f"bytes 0-9/{size}"}
    assert ann.put(here, content=b"0123456789", headers=part).status_code == 202
    [row] = ann.get("/v1/uploads").json()["uploads"]
    assert (row["sha256"], row["total"], row["links"]["self"]) == (sha256, size, here)
    assert row["touched"] < row["expires"]
    assert quotas(ann)["bytes"]["used"] == size
    assert server.client.delete(here).status_code == 204  # an admin's own, who has none
    assert quotas(ann)["bytes"]["used"] == size
    for _ in range(2):
        assert ann.delete(here).status_code == 204
    assert (quotas(ann)["bytes"]["used"], ann.get("/v1/uploads").json()) == (0, {"uploads": []})
    assert ann.head(here).headers["upload-offset"] == "0"
    assert list((server.cache / "blobs" / "uploads").glob(f"*/{sha256}*")) == []
    assert ann.put(here, content=b"9", headers={"Content-Range": f"bytes 0-0/{3 * MIB}"}).status_code == 202
    ann.delete(here)


def test_no_upload_is_dropped_by_another_name_or_while_somebody_sends_it(ann: httpx.Client) -> None:
    sha256, address = "d" * 64, ann.base_url
    head = (
        f"PUT /v1/uploads/{sha256} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {ann.headers['Authorization']}\r\n"
        f"Content-Length: {MIB}\r\n\r\n0123456789"
    )
    with socket.create_connection((address.host, address.port or 80)) as connection:
        connection.sendall(head.encode())
        until(lambda: quotas(ann)["bytes"]["used"] == MIB)
        for name in ("request-x", sha256.upper(), f"{sha256}-1048576"):
            refused = ann.delete(f"/v1/uploads/{name}")
            assert refused.json()["code"] == "invalid-option", (name, refused, refused.content)
        refused = ann.delete(f"/v1/uploads/{sha256}")
        assert (refused.status_code, refused.json()["code"]) == (409, "upload-conflict")
    until(lambda: ann.delete(f"/v1/uploads/{sha256}").status_code == 204)
    assert quotas(ann)["bytes"]["used"] == 0


def test_the_metrics_say_how_many_owners_are_near_a_quota_and_name_none(
    start: Callable[..., RunningServer],
) -> None:
    server = start(quota_bytes=1000)
    part = {"Content-Range": "bytes 0-0/850"}
    made = server.client.post("/v1/keys", json={"name": "ann", "scopes": ["read", "compile"]}).json()
    server.client.headers["Authorization"] = f"Bearer {made['secret']}"
    assert server.client.put(f"/v1/uploads/{'e' * 64}", content=b"0", headers=part).status_code == 202
    text = server.client.get("/metrics").text
    for line in (
        "relaxc_uploads 1.0",
        "relaxc_upload_bytes 850.0",
        'relaxc_quota_owners{quota="bytes",share="0.5"} 1.0',
        'relaxc_quota_owners{quota="bytes",share="0.8"} 1.0',
        'relaxc_quota_owners{quota="bytes",share="1"} 0.0',
        'relaxc_quota_owners{quota="tuning_hours",share="0.5"} 0.0',
    ):
        assert line in text
    assert made["owner"] not in text


def test_a_form_that_does_not_say_how_large_it_is_gets_what_is_left(server: RunningServer, ann: httpx.Client) -> None:
    model = make_onnx(4, seed=95)
    sent = httpx.Request("POST", f"{server.url}/v1/models", files={"model": ("m.onnx", model)})
    body = {"content": (chunk for chunk in [sent.read()]), "headers": {"Content-Type": sent.headers["content-type"]}}
    made = ann.post("/v1/models", **body)
    assert made.status_code == 201, made.text
    used = quotas(ann)["bytes"]["used"]
    assert used == made.json()["size_bytes"]
    allow(server, ann, bytes=used + 10)
    other = httpx.Request("POST", f"{server.url}/v1/models", files={"model": ("m.onnx", make_onnx(8, seed=96))})
    body = {"content": (chunk for chunk in [other.read()]), "headers": {"Content-Type": other.headers["content-type"]}}
    refused = ann.post("/v1/models", **body)
    assert (refused.status_code, refused.json()["code"]) == (507, "storage-quota-exceeded")
    assert ann.delete(f"/v1/models/{made.json()['digest']}").status_code == 204
    assert quotas(ann)["bytes"]["used"] == 0


def test_jobs_and_hours_of_tuning_are_refused_with_when_to_come_again(server: RunningServer, ann: httpx.Client) -> None:
    sent = {"model": ("m.onnx", make_onnx(4, seed=97))}
    digest = ann.post("/v1/models", files=sent).json()["digest"]
    allow(server, ann, queued_jobs=2, running_jobs=0)
    tune = {"kind": "tune", "model": digest, "trials": 1, "time_s": 3600}
    assert ann.post("/v1/jobs", json=tune).status_code == 202
    long = ann.post("/v1/jobs", json={**tune, "time_s": 4000})
    assert (long.status_code, long.json()["code"]) == (429, "quota-exceeded")
    assert long.json()["fields"] == {"quota": "tuning_hours", "limit": 2, "used": 1, "asked": 1.111}
    assert "retry-after" not in long.headers
    job = ann.post("/v1/jobs", json={"model": digest, "options": options_of()})
    assert job.status_code == 202
    refused = ann.post("/v1/jobs", json={"model": digest, "options": {"seed": 1}})
    assert (refused.status_code, refused.json()["code"]) == (429, "quota-exceeded")
    assert refused.headers["retry-after"] == "3"
    fields = {name: refused.json()["fields"][name] for name in ("quota", "limit", "used")}
    assert fields == {"quota": "queued_jobs", "limit": 2, "used": 2}
    shown = quotas(ann)
    assert [shown[name]["used"] for name in ("queued_jobs", "running_jobs", "tuning_hours")] == [2, 0, 1]
    for row in ann.get("/v1/jobs").json()["jobs"]:
        assert ann.delete(f"/v1/jobs/{row['id']}").status_code == 202
    assert quotas(ann)["queued_jobs"]["used"] == 0
    with Client(server.url, ann.headers["Authorization"].removeprefix("Bearer ")) as client:
        allow(server, ann, bytes=1)
        with pytest.raises(StorageQuotaExceeded) as error:
            client.submit("compile", model=digest)
        assert error.value.fields["limit"] == 1


def test_artifacts_are_listed_and_forgotten(server: RunningServer, ann: httpx.Client) -> None:
    sent = {"model": ("m.onnx", make_onnx(4, seed=98))}
    done = ann.post("/v1/compile", files=sent, data={"options": json.dumps({"seed": seed_of("made")})})
    assert done.status_code == 200, done.text
    digest = hashlib.sha256(done.content).hexdigest()
    [row] = ann.get("/v1/artifacts").json()["artifacts"]
    assert (row["digest"], row["size_bytes"]) == (digest, len(done.content))
    assert ann.delete(f"/v1/artifacts/{digest}").status_code == 204
    gone = ann.delete(f"/v1/artifacts/{digest}")
    assert (gone.status_code, gone.json()["code"]) == (404, "artifact-not-found")
    assert ann.get(row["links"]["self"]).status_code == 404
    assert ann.delete(f"/v1/records/{'a' * 64}").json()["code"] == "records-not-found"
