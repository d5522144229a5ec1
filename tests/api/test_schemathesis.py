"""schemathesis over the OpenAPI document, against a real server: no 5xx, and every answer as the document says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.conftest import BY_SEED, RunningServer, make_onnx
from tests.api.jobs import ended, submit, uploaded
from tests.waiting import PATIENCE_S

_UNCHECKED = "positive_data_acceptance"
"""What fits the document may still be no model, no cursor of ours, no known digest."""

_NO_LIMIT_S = 600
"""A time decides no test."""


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that serves everybody, also once a key was made; it has a model, a job and an artifact."""
    running = RunningServer(
        tmp_path_factory.mktemp("cache"), BY_SEED, no_auth=True, body_timeout_s=5, queue_max=1000, compile_timeout_s=20
    )
    ended(running, submit(running, uploaded(running, make_onnx(4))).json()["id"])
    yield running
    running.stop()


def explore(server: RunningServer, folder: Path, *phases: str, examples: int, limit_s: int, seed: int) -> str:
    """What schemathesis says of these phases; its exit status is 0."""
    program = Path(sys.executable).parent / "schemathesis"
    command = [
        *(program, "run", f"{server.url}/openapi.json", "--checks", "all", "--exclude-checks", _UNCHECKED),
        *("--phases", ",".join(phases), "--max-examples", examples, "--seed", seed),
        *("--max-time", limit_s, "--request-timeout", _NO_LIMIT_S, "--max-response-time", _NO_LIMIT_S),
        *("--no-shrink", "--warnings", "off"),
    ]
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=limit_s + 5 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_answer_is_as_the_document_says(open_server: RunningServer, tmp_path: Path) -> None:
    explore(open_server, tmp_path, "examples", "coverage", examples=1, limit_s=15, seed=1)
    assert open_server.client.get("/healthz").status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(6000)
def test_every_answer_is_as_the_document_says_for_long(open_server: RunningServer, tmp_path: Path) -> None:
    for seed in (2, 3):
        phases = ("examples", "coverage", "fuzzing")
        said = explore(open_server, tmp_path, *phases, examples=100, limit_s=600, seed=seed)
        assert "Tested: 4" in said  # forty calls and more
    assert open_server.client.get("/healthz").status_code == 200
