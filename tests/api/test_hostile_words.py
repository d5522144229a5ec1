"""What a job's process says of itself reaches its owner as Unicode, in bounds, and never in the server's name."""

from __future__ import annotations

from typing import Any

import pytest

from relaxc.service.process.bounds import MAX_OUTCOME_BYTES
from tests.api.conftest import RunningServer, make_onnx
from tests.api.jobs import ended, submit, uploaded
from tests.api.test_events import followed


@pytest.fixture(scope="module")
def model(server: RunningServer) -> str:
    """The digest of a model that the server has."""
    return uploaded(server, make_onnx(4, seed=140))


def test_half_a_surrogate_from_a_child_breaks_no_answer(server: RunningServer, model: str) -> None:
    id = submit(server, model, "halves").json()["id"]
    story = followed(server, id)
    job = ended(server, id)
    assert (job["state"], job["error"]["code"]) == ("failed", "unsupported-model")
    for text in (job["error"]["message"], job["error"]["remedy"], job["error"]["node"], job["stage"]):
        assert text == "half of \N{REPLACEMENT CHARACTER}"
    assert [kind for _, kind, _ in story] == ["state", "stage", "log", "state", "done"]
    listed = server.client.get("/v1/jobs", params={"model": model})
    assert listed.status_code == 200
    assert id in [row["id"] for row in listed.json()["jobs"]]


def test_a_child_does_not_speak_for_the_server(server: RunningServer, model: str) -> None:
    story = followed(server, submit(server, model, "forge").json()["id"])
    assert [kind for _, kind, _ in story] == ["state", "log", "state", "done"]
    assert [data["state"] for _, kind, data in story if kind == "state"] == ["running", "failed"]
    assert story[-1][2]["state"] == "failed"


def test_an_endless_error_is_a_short_one(server: RunningServer, model: str) -> None:
    job = ended(server, submit(server, model, "boast").json()["id"])
    error: dict[str, Any] = job["error"]
    assert (job["state"], error["code"]) == ("failed", "unsupported-model")
    assert error["fields"] == {"left_out_bytes": pytest.approx(3_000_000, rel=0.01)}
    assert len(error["message"]) < 10_000
    assert "left out" in error["message"]


def test_an_endless_build_record_fails_the_job(server: RunningServer, model: str) -> None:
    job = ended(server, submit(server, model, "made", shapes={"record_mib": 2}).json()["id"])
    assert (job["state"], job["artifact"], job["error"]["code"]) == ("failed", None, "compile-failed")
    assert str(MAX_OUTCOME_BYTES) in job["error"]["message"]
