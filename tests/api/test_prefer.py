"""`Prefer` (RFC 7240): what is understood, and what a compile makes of it."""

from __future__ import annotations

import json
import time

import httpx
import pytest

from relaxc.service.api.prefer import preference_of
from tests.api.conftest import RunningServer, make_onnx
from tests.api.jobs import ended, options_of
from tests.api.test_compile import problem_of


@pytest.mark.parametrize(
    ("header", "wait_s", "applied"),
    [
        ("", None, None),
        ("wait=10", 10, "wait=10"),
        ("Wait = 10", 10, "wait=10"),
        ('wait="10"', 10, "wait=10"),
        ("wait=0", 0, "wait=0"),
        ("wait=999999999", 86400, "wait=86400"),
        ("respond-async", 0, "respond-async"),
        ("RESPOND-ASYNC", 0, "respond-async"),
        ("respond-async, wait=5", 5, "respond-async, wait=5"),
        ("wait=5, respond-async; foo=bar", 5, "respond-async, wait=5"),
        ("wait=3, wait=9", 3, "wait=3"),  # the first wins (section 2)
        ("handling=lenient, wait=2", 2, "wait=2"),
        ("wait", None, None),
        ("wait=x", None, None),
        ("wait=-1", None, None),
        ("wait=1.5", None, None),
        ("waiting=3", None, None),
        (",,=;", None, None),
    ],
)
def test_what_a_sender_prefers(header: str, wait_s: float | None, applied: str | None) -> None:
    found = preference_of(header)
    assert (found.wait_s, found.applied) == (wait_s, applied)


def compile_with(server: RunningServer, model: bytes, prefer: str, **how: int | str) -> httpx.Response:
    """A compile that is not waited for to its end."""
    entry = str(how.pop("entry", "made"))
    options = options_of(entry, **{name: int(value) for name, value in how.items()})
    return server.client.post(
        "/v1/compile",
        files={"model": ("net.onnx", model)},
        data={"options": json.dumps(options)},
        headers={"Prefer": prefer},
    )


def test_respond_async_gives_the_job_at_once(server: RunningServer) -> None:
    answer = compile_with(server, make_onnx(4, seed=50), "respond-async", sleep_s=2)
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "respond-async")
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    assert answer.json()["state"] in ("queued", "running")
    assert ended(server, answer.json()["id"])["state"] == "succeeded"


def test_wait_gives_the_library_or_the_job(server: RunningServer) -> None:
    model = make_onnx(4, seed=51)
    begun = time.monotonic()
    late = compile_with(server, model, "wait=1", sleep_s=8)
    assert (late.status_code, late.headers["preference-applied"]) == (202, "wait=1")
    assert time.monotonic() - begun >= 1
    ended(server, late.json()["id"])
    soon = compile_with(server, model, "wait=30", sleep_s=8)
    assert (soon.status_code, soon.headers["preference-applied"]) == (200, "wait=30")
    assert soon.content.startswith(b"\x7fELF")
    assert soon.headers["cache-status"] == "relaxc; hit"


def test_a_failure_within_the_wait_is_a_problem(server: RunningServer) -> None:
    answer = compile_with(server, make_onnx(4, seed=52), "wait=30", entry="refuse")
    assert (answer.status_code, problem_of(answer)["code"]) == (422, "unsupported-model")
    assert answer.headers["preference-applied"] == "wait=30"
