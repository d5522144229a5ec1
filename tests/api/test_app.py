"""The service as a whole: health, targets, errors of the framework, bugs without their trace, OpenAPI."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from relaxc.service.api.app import create_app
from relaxc.service.api.problems import problem
from relaxc.service.errors import ServerDied, ServiceError, by_code
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.queue import submission
from tests.api.conftest import RunningServer
from tests.api.test_compile import problem_of


def test_health(server: RunningServer) -> None:
    answer = server.client.get("/healthz").json()
    assert (answer["status"], answer["running"], answer["waiting"]) == ("ok", 0, 0)


def test_targets(server: RunningServer) -> None:
    targets = server.client.get("/v1/targets").json()["targets"]
    assert targets[0]["target"] == "auto"
    assert targets[0]["missing"] == []
    assert {"x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4", "sapphirerapids", "aarch64", "cuda-sm80", "cuda-sm90"} <= {
        target["target"] for target in targets
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1", 404, "not-found"),
        ("GET", "/v1/nothing", 404, "not-found"),
        ("GET", "/v1/compile", 405, "method-not-allowed"),
        ("DELETE", "/v1/targets", 405, "method-not-allowed"),
        ("GET", "/problems/of-mine", 404, "not-found"),
        ("POST", "/v1/compile", 400, "invalid-option"),
    ],
)
def test_errors_of_http_are_problems_too(server: RunningServer, method: str, path: str, status: int, code: str) -> None:
    answer = server.client.request(method, path)
    assert (answer.status_code, problem_of(answer)["code"]) == (status, code)


@pytest.mark.parametrize("code", sorted([*by_code(), "not-found", "internal-error"]))
def test_every_problem_explains_itself(server: RunningServer, code: str) -> None:
    answer = server.client.get(f"/problems/{code}").json()
    assert answer["code"] == code
    assert answer["remedy"]


def test_a_bug_shows_no_trace(tmp_path: Path) -> None:
    app = create_app(partial(Backend, tmp_path))

    @app.get("/bug")
    def bug() -> None:
        raise KeyError("secret")

    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.get("/bug")
    problem = problem_of(answer)  # type: ignore[arg-type]  # the same interface
    assert (answer.status_code, problem["code"]) == (500, "internal-error")
    assert problem["fields"]["incident"]
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


@pytest.fixture(scope="module")
def document() -> dict[str, object]:
    app: FastAPI = create_app()
    return app.openapi()


def test_openapi_has_every_call_and_only_problems_as_errors(document: dict[str, object]) -> None:
    paths = document["paths"]
    assert isinstance(paths, dict)
    assert {f"{method.upper()} {path}" for path, calls in paths.items() for method in calls} == {
        "POST /v1/compile",
        "GET /v1/models",
        "POST /v1/models",
        "GET /v1/models/{digest}",
        "DELETE /v1/models/{digest}",
        "GET /v1/uploads",
        "PUT /v1/uploads/{sha256}",
        "HEAD /v1/uploads/{sha256}",
        "DELETE /v1/uploads/{sha256}",
        "GET /v1/jobs",
        "POST /v1/jobs",
        "GET /v1/jobs/{id}",
        "DELETE /v1/jobs/{id}",
        "GET /v1/jobs/{id}/events",
        "GET /v1/jobs/{id}/logs",
        "GET /v1/jobs/{id}/report",
        "GET /v1/jobs/{id}/report/curve.svg",
        "GET /v1/artifacts",
        "GET /v1/artifacts/{digest}",
        "DELETE /v1/artifacts/{digest}",
        "DELETE /v1/records/{digest}",
        "GET /v1/artifacts/{digest}/weights",
        "GET /v1/artifacts/{digest}/manifest",
        "GET /v1/artifacts/{digest}/report",
        "GET /v1/records",
        "POST /v1/records",
        "GET /v1/records/{digest}",
        "GET /v1/targets",
        "GET /v1/keys",
        "POST /v1/keys",
        "DELETE /v1/keys/{id}",
        "POST /v1/keys/{id}/rotate",
        "GET /v1/audit",
        "GET /v1/audit/export",
        "GET /v1/owner",
        "GET /v1/workers",
        "GET /v1/owners",
        "POST /v1/owners",
        "GET /v1/owners/{id}",
        "PATCH /v1/owners/{id}",
        "DELETE /v1/owners/{id}/keys",
        "GET /problems/{code}",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
    }
    assert "HTTPValidationError" not in str(document)
    for calls in paths.values():
        for call in calls.values():
            assert call["summary"]
            assert call["description"]
            for status, answer in call["responses"].items():
                assert answer["description"]
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"]


def test_openapi_documents_what_a_compile_can_answer(document: dict[str, object]) -> None:
    call = document["paths"]["/v1/compile"]["post"]  # type: ignore[index]
    assert {"200", "400", "409", "413", "415", "422", "429", "500", "503", "504", "507"} <= set(call["responses"])
    examples = call["responses"]["422"]["content"]["application/problem+json"]["examples"]
    assert {"model-malformed", "unsupported-model", "model-unsafe", "verification-failed"} <= set(examples)
    form = call["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(form["properties"]) == {"model", "data", "options", "target"}


def test_openapi_says_what_is_refused_and_where_the_database_is_asked(document: dict[str, object]) -> None:
    paths: dict[str, Any] = document["paths"]  # type: ignore[assignment]
    problems = "application/problem+json"
    for path, calls in paths.items():
        for method, call in calls.items():
            if path.startswith("/v1/") or path == "/metrics":
                assert "service-error" in call["responses"]["503"]["content"][problems]["examples"], (method, path)
                assert "Retry-After" in {name.title() for name in call["responses"]["503"]["headers"]}
    answers = paths["/v1/compile"]["post"]["responses"]
    told = {code for answer in answers.values() for code in answer["content"].get(problems, {}).get("examples", ())}
    assert {"artifact-not-found", "artifact-corrupt", "model-not-found", "not-tuned", "server-died"} <= told
    wanted = document["components"]["schemas"]["JobSubmission"]["properties"]  # type: ignore[index]
    for name, most in (("trials", submission._MAX_TRIALS), ("time_s", submission._MAX_TIME_S)):
        assert wanted[name]["anyOf"][0]["maximum"] == most


def test_who_is_told_of_a_dead_server_is_told_when_to_come_again() -> None:
    for error in (ServerDied("twice"), ServiceError("down")):
        answer = problem(error)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
