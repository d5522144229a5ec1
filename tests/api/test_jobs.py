"""/v1/jobs through a real server: asked for, listed, cancelled, failed, and asked for twice."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any

import pytest

from tests.api.conftest import RunningServer, make_onnx
from tests.api.jobs import ended, submit, uploaded
from tests.api.test_compile import problem_of
from tests.waiting import until


@pytest.fixture(scope="module")
def model(server: RunningServer, onnx_model: bytes) -> str:
    """The digest of a model that the server has."""
    return uploaded(server, onnx_model)


def test_a_job_from_its_request_to_its_artifact(server: RunningServer) -> None:
    digest = uploaded(server, make_onnx(4, seed=20))
    accepted = submit(server, digest, name="mine")
    job = accepted.json()
    assert accepted.status_code == 202
    assert accepted.headers["location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
    assert accepted.headers["cache-status"] == "relaxc; fwd=miss; stored"
    done = ended(server, job["id"])
    assert (done["state"], done["error"], done["kind"], done["name"]) == ("succeeded", None, "compile", "mine")
    assert done["model"] == digest
    assert done["created"] <= done["started"] <= done["finished"]
    library = server.client.get(done["links"]["artifact"])
    assert hashlib.sha256(library.content).hexdigest() == done["artifact"]
    again = submit(server, digest)
    assert again.headers["cache-status"] == "relaxc; hit"
    assert again.json()["state"] == "succeeded"


def test_what_a_job_shows_can_be_asked_for_again(server: RunningServer) -> None:
    digest = uploaded(server, make_onnx(4, seed=121))
    mine = {"kind": "llvm", "mcpu": "x86-64-v3", "cores": 3, "name": "mine"}
    for target, resolved in (("auto", None), ("x86-64-v3", "x86-64-v3"), (mine, "mine"), (json.dumps(mine), "mine")):
        job = submit(server, digest, target=target, priority=3, name="mine").json()
        assert job["target"] == (mine if resolved == "mine" else target)
        assert job["resolved"] == resolved or resolved is None
        shown = {name: job[name] for name in ("kind", "model", "target", "options", "priority", "name")}
        again = server.client.post("/v1/jobs", json=shown)
        assert again.status_code == 202, again.text
        assert again.json()["request_key"] == job["request_key"]
        ended(server, job["id"])


def test_the_result_of_a_compile_names_neither_the_server_nor_its_folders(server: RunningServer) -> None:
    job = submit(server, uploaded(server, make_onnx(4, seed=122))).json()
    done = ended(server, job["id"])
    assert done["result"]["build"].keys() == {"stages", "date", "waited_s"}
    assert str(server.cache) not in json.dumps(done)


def test_a_failed_job_says_whose_fault_it_is(server: RunningServer, model: str) -> None:
    failed = ended(server, submit(server, model, "refuse").json()["id"])
    error = failed["error"]
    assert failed["state"] == "failed"
    assert (error["code"], error["fault"], error["retryable"]) == ("unsupported-model", "model", False)
    assert error["node"] == "a"
    assert error["remedy"]
    crashed = ended(server, submit(server, model, "segfault").json()["id"])["error"]
    assert (crashed["code"], crashed["fault"]) == ("compiler-crashed", "compiler")
    assert crashed["fields"]["signal"] == "SIGSEGV"


def test_what_a_job_printed(server: RunningServer, model: str) -> None:
    job = submit(server, model, "segfault", target="x86-64-v3").json()
    ended(server, job["id"])
    log = server.client.get(f"/v1/jobs/{job['id']}/logs")
    assert log.headers["content-type"] == "text/plain; charset=utf-8"
    assert "about to crash" in log.text


def test_cancel(server: RunningServer, model: str) -> None:
    job = submit(server, model, "sleep").json()
    until(server.is_at_work)
    answer = server.client.delete(f"/v1/jobs/{job['id']}")
    assert answer.status_code == 202
    until(lambda: not server.jobs())
    done = ended(server, job["id"])
    assert (done["state"], done["error"]["code"]) == ("cancelled", "cancelled")
    again = server.client.delete(f"/v1/jobs/{job['id']}")
    assert (again.status_code, problem_of(again)["code"]) == (409, "job-ended")


def test_an_idempotency_key_repeats_the_first_answer(server: RunningServer, model: str) -> None:
    key = {"Idempotency-Key": str(uuid.uuid4())}
    first = submit(server, model, headers=key)
    second = submit(server, model, headers=key)
    assert first.json()["id"] == second.json()["id"]
    assert second.status_code == 202
    other = submit(server, model, headers=key, priority=1)
    assert (other.status_code, problem_of(other)["code"]) == (422, "idempotency-conflict")
    bad = submit(server, model, headers={"Idempotency-Key": "x" * 300})
    assert (bad.status_code, problem_of(bad)["code"]) == (422, "invalid-request")


def test_pages_and_filters(server: RunningServer) -> None:
    digest = uploaded(server, make_onnx(4, seed=21))
    ids = [submit(server, digest, shapes={"weights_mib": size}).json()["id"] for size in (1, 2, 3, 4, 5)]
    for id in ids:
        ended(server, id)
    found: list[str] = []
    page: dict[str, Any] = {"next": None}
    while True:
        query = {"model": digest, "limit": "2", **({"cursor": page["next"]} if page["next"] else {})}
        page = server.client.get("/v1/jobs", params=query).json()
        found += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
    assert found == ids[::-1]
    assert server.client.get("/v1/jobs", params={"model": digest, "state": "failed"}).json()["jobs"] == []
    assert server.client.get("/v1/jobs", params={"model": digest, "kind": "tune"}).json()["jobs"] == []


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "invalid-request"),
        ("limit=501", "invalid-request"),
        ("limit=x", "invalid-request"),
        ("state=done", "invalid-request"),
        ("kind=bake", "invalid-request"),
        ("model=abc", "invalid-request"),
        ("stat=failed", "invalid-request"),
        ("cursor=%00", "invalid-request"),
        ("cursor=bm9uc2Vuc2U", "invalid-option"),
    ],
)
def test_wrong_filters_are_refused(server: RunningServer, query: str, code: str) -> None:
    answer = server.client.get(f"/v1/jobs?{query}")
    assert problem_of(answer)["code"] == code


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"kind": "compile"}, 400, "invalid-option"),
        ({"kind": "bench"}, 400, "invalid-option"),
        ({"kind": "compile", "model": "0" * 64}, 404, "model-not-found"),
        ({"kind": "bench", "artifact": "0" * 64}, 404, "artifact-not-found"),
        ({"kind": "bake", "model": "0" * 64}, 422, "invalid-request"),
        ({"model": "../../etc/passwd"}, 422, "invalid-request"),
        ({"model": "0" * 64, "colour": 1}, 422, "invalid-request"),
        ({"model": "0" * 64, "priority": 10**30}, 422, "invalid-request"),
        ({"model": "0" * 64, "options": {"plugins": ["/etc/passwd"]}}, 400, "invalid-option"),
        ({"model": "0" * 64, "options": {"shapes": {"x\0": [1]}}}, 400, "invalid-option"),
        ({"model": "0" * 64, "options": {"shapes": {"x": ["\ud800"]}}}, 400, "invalid-option"),
        ({"model": "0" * 64, "webhook": "file:///etc/passwd"}, 400, "invalid-option"),
        ([], 422, "invalid-request"),
    ],
)
def test_wrong_requests_are_refused(server: RunningServer, body: Any, status: int, code: str) -> None:
    content, headers = json.dumps(body), {"Content-Type": "application/json"}
    answer = server.client.post("/v1/jobs", content=content, headers=headers)
    assert (answer.status_code, problem_of(answer)["code"]) == (status, code), answer.text


@pytest.mark.parametrize("target", ["z80", {"kind": "llvm", "mcpu": "; rm -rf /"}, {"kind": "cuda"}, {}])
def test_wrong_targets_are_refused(server: RunningServer, model: str, target: Any) -> None:
    answer = submit(server, model, target=target)
    assert (answer.status_code, problem_of(answer)["code"]) == (400, "invalid-target")


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{", "application/json", 422, "invalid-request"),
        (b"{}", "text/plain", 415, "unsupported-media-type"),
        (b"", "application/json", 422, "invalid-request"),
        (b"[" * 60_000, "application/json", 400, "bad-request"),
        (b'{"options": ' + b'{"a":' * 900 + b"1" + b"}" * 901, "application/json", 400, "invalid-option"),
        (b'{"priority": ' + b"9" * 5000 + b"}", "application/json", 400, "bad-request"),
        (b" " * (2 << 20), "application/json", 413, "content-too-large"),
    ],
)
def test_wrong_bodies_are_refused(server: RunningServer, content: bytes, kind: str, status: int, code: str) -> None:
    answer = server.client.post("/v1/jobs", content=content, headers={"Content-Type": kind})
    assert (answer.status_code, problem_of(answer)["code"]) == (status, code), answer.text


@pytest.mark.parametrize("id", ["j_" + "0" * 22, "j_", "x", "..%2f..", "%00", "a" * 5000])
@pytest.mark.parametrize("below", ["", "/events", "/logs", "/report", "/report/curve.svg", "/report/curve.png"])
def test_a_guessed_id_finds_nothing(server: RunningServer, id: str, below: str) -> None:
    answer = server.client.get(f"/v1/jobs/{id}{below}")
    assert answer.status_code == 404
    assert problem_of(answer)["code"] in ("job-not-found", "not-found")


def test_a_compile_has_no_report_of_a_tuning(server: RunningServer, model: str) -> None:
    job = submit(server, model).json()
    ended(server, job["id"])
    answer = server.client.get(f"/v1/jobs/{job['id']}/report")
    assert (answer.status_code, problem_of(answer)["code"]) == (404, "job-not-found")
