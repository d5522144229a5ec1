"""The service as an earlier commit of this repository had it, out of git, and data that its own server has made."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest

from tests.api.conftest import ROOT, RunningServer, make_onnx
from tests.api.jobs import ended, parsed
from tests.waiting import until

__all__ = ["ARRIVED", "COMPILE", "FIRST", "Former", "lost", "made_by", "seen", "source_of"]

FIRST = "459bce93ae4f6861b54df194fa15c1c902ec811f"
"""The commit whose data every later version takes over."""

COMPILE = "service.jobs.tasks:compile_model"
"""What it calls a compile."""

_NEEDED = ("service", "schedules", "tuning_logs", "tests", "pyproject.toml")


def source_of(commit: str, folder: Path) -> Path:
    """Write what its server needs into `folder`, and return it; skip the test where git does not have the commit."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, *_NEEDED]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    except FileNotFoundError:
        pytest.skip("there is no git")
    if done.returncode != 0:
        pytest.skip(f"this checkout's history has no commit {commit[:7]}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@dataclass(frozen=True)
class Former:
    """What one of its servers made, to be looked for later."""

    admin: str
    """The secret of an admin's key."""

    other: str
    """The secret of another owner's key; `revoked` is of one that was revoked."""

    revoked: str
    jobs: dict[str, str]
    """The ids of its jobs, by what each was for."""

    external: str
    """The digest of the model with external data."""

    unfinished: bytes
    """The model whose upload was broken off, after `ARRIVED` bytes."""

    again: dict[str, Any]
    """What was sent under the idempotency key `again`."""


ARRIVED = 1000


def made_by(server: RunningServer) -> Former:
    """Have a server of that commit do each kind of thing once, and keep it; the last jobs have not ended."""
    client = server.client
    secrets = {}
    for name, scopes in (("admin", ["admin"]), ("other", ["read", "compile", "tune"]), ("revoked", ["read"])):
        key = _ok(client.post("/v1/keys", json={"name": name, "scopes": scopes})).json()
        client.headers["Authorization"] = f"Bearer {secrets.setdefault('admin', key['secret'])}"
        secrets[name] = key["secret"]
    _ok(client.delete(f"/v1/keys/{key['id']}"))

    small = make_onnx(16, seed=1)
    model = _ok(client.post("/v1/models", files={"model": ("small.onnx", small)})).json()["digest"]
    external = _ok(client.post("/v1/models", files=_with_external_data())).json()["digest"]
    unfinished = make_onnx(32, seed=2)
    part = {"Content-Range": f"bytes 0-{ARRIVED - 1}/{len(unfinished)}"}
    name = hashlib.sha256(unfinished).hexdigest()
    _ok(client.put(f"/v1/uploads/{name}?name=unfinished.onnx", content=unfinished[:ARRIVED], headers=part))

    def job(kind: str, **wanted: Any) -> str:
        headers = wanted.pop("headers", {})
        return str(_ok(client.post("/v1/jobs", json={"kind": kind, **wanted}, headers=headers)).json()["id"])

    again = {"kind": "compile", "model": model, "webhook": "http://127.0.0.1:9/"}
    jobs = {"compiled": job("compile", model=model, webhook=again["webhook"], headers={"Idempotency-Key": "again"})}
    artifact = _succeeded(server, jobs["compiled"])["artifact"]
    jobs["external"] = job("compile", model=external, options={"opt_level": 1})
    jobs["tuned"] = job("tune", model=model, trials=4, time_s=30)
    jobs["bench"] = job("bench", artifact=artifact, time_s=0.1)
    jobs["verify"] = job("verify", model=model, artifact=artifact)
    for id in jobs.values():
        _succeeded(server, id)
    jobs["refused"] = job("compile", model=model, options={"shapes": {"none": [1]}})
    assert ended(server, jobs["refused"])["state"] == "failed"
    jobs["cancelled"] = job("tune", model=model, trials=5000, time_s=600)
    _ok(client.delete(f"/v1/jobs/{jobs['cancelled']}"))
    assert ended(server, jobs["cancelled"])["state"] == "cancelled"
    client.headers["Authorization"] = f"Bearer {secrets['other']}"
    _ok(client.post("/v1/models", files={"model": ("theirs.onnx", small)}))
    jobs["theirs"] = job("compile", model=model)
    assert _succeeded(server, jobs["theirs"])["artifact"] == artifact
    client.headers["Authorization"] = f"Bearer {secrets['admin']}"
    jobs["running"] = job("tune", model=external, trials=5000, time_s=600)
    until(lambda: client.get(f"/v1/jobs/{jobs['running']}").json()["state"] == "running")
    jobs["waiting"] = job("tune", model=model, trials=3, time_s=20, options={"opt_level": 3})
    return Former(**secrets, jobs=jobs, external=external, unfinished=unfinished, again=again)


def _ok(answer: httpx.Response) -> httpx.Response:
    assert answer.is_success, answer.text
    return answer


def _succeeded(server: RunningServer, id: str) -> dict[str, Any]:
    job = ended(server, id)
    assert job["state"] == "succeeded", job
    return job


def _with_external_data() -> list[tuple[str, tuple[str, bytes]]]:
    """The parts of a form."""
    model = onnx.load_from_string(make_onnx(24, seed=3))
    weight = model.graph.initializer[0]
    data = weight.raw_data
    onnx.external_data_helper.set_external_data(weight, "w.bin")
    weight.ClearField("raw_data")
    return [("model", ("external.onnx", model.SerializeToString())), ("data", ("w.bin", data))]


def seen(server: RunningServer, former: Former, wanted: Iterable[str]) -> dict[str, Any]:
    """Return by path what the admin is told of all that is kept, as JSON or bytes, and of these jobs the story."""
    found: dict[str, Any] = {}

    def look(path: str) -> Any:
        answer = _ok(server.client.get(path, headers={"Authorization": f"Bearer {former.admin}"}))
        return found.setdefault(path, _content(answer))

    look("/v1/keys")
    for model in look("/v1/models")["models"]:
        look(f"/v1/models/{model['digest']}")
    for records in look("/v1/records")["records"]:
        look(f"/v1/records/{records['digest']}")
    for name in wanted:
        job = look(f"/v1/jobs/{former.jobs[name]}")
        for link in job["links"].values():
            look(link)
        if job["kind"] == "tune":
            look(f"/v1/jobs/{job['id']}/report")
            look(f"/v1/jobs/{job['id']}/report/curve.png")
        if job["artifact"]:
            look(f"/v1/artifacts/{job['artifact']}/manifest")
            look(f"/v1/artifacts/{job['artifact']}/report")
    return found


def _content(answer: httpx.Response) -> Any:
    kind = answer.headers["content-type"]
    if "event-stream" in kind:
        return [list(event) for event in parsed(iter(answer.text.splitlines()))]
    return answer.json() if "json" in kind and "jsonl" not in kind else answer.content


def lost(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Yield what `before` has and `after` has not, or has otherwise; a later version may say more of a thing."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{at}.{key}")
            else:
                yield f"{at}.{key} is missing"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for position, value in enumerate(before):
            yield from lost(value, after[position], f"{at}[{position}]")
    elif before != after:
        yield f"{at}: {str(before)[:200]} became {str(after)[:200]}"
