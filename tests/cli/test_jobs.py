"""`relaxc --server URL jobs`: the verbs on a real server whose children do what a seed says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaxc.service.client import Client, Job
from tests.api.conftest import BY_SEED, RunningServer, make_onnx
from tests.cli.conftest import Relaxc
from tests.jobs.entries import seed_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("cache"), BY_SEED)
    yield running
    running.stop()


def _submitted(server: RunningServer, tmp_path: Path, entry: str) -> Job:
    (tmp_path / "m\x1b[31m.onnx").write_bytes(make_onnx(4, seed=seed_of(entry)))
    with Client(server.url) as client:
        model = client.upload(tmp_path / "m\x1b[31m.onnx")
        return client.submit("compile", model=model.digest, options={"seed": seed_of(entry)})


def test_a_job_is_listed_awaited_shown_and_its_log_printed(
    called: Relaxc, server: RunningServer, tmp_path: Path
) -> None:
    job = _submitted(server, tmp_path, "made")
    jobs = ("--server", server.url, "jobs")
    waited = called(*jobs, "wait", job.id, "--json")
    assert (waited.returncode, json.loads(waited.stdout)["state"]) == (0, "succeeded")
    [row] = [line for line in called(*jobs, "ls").stdout.splitlines() if job.id[:12] in line]
    assert "succeeded" in row and "\x1b" not in row
    shown = called(*jobs, "show", job.id[:12])
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0].split() == ["job", job.id]
    assert json.loads(called(*jobs, "show", job.id, "--json").stdout)["id"] == job.id
    assert job.id in [each["id"] for each in json.loads(called(*jobs, "ls", "--json").stdout)["jobs"]]
    with Client(server.url) as client:
        log = client.logs(job.id)
    assert called(*jobs, "logs", "-f", job.id).stdout == called(*jobs, "logs", job.id).stdout == log
    ended = called(*jobs, "cancel", job.id)
    assert ended.returncode == 2
    assert "relaxc jobs show" in ended.stderr


def test_a_running_job_is_cancelled_and_waiting_for_it_fails(
    called: Relaxc, server: RunningServer, tmp_path: Path
) -> None:
    job = _submitted(server, tmp_path, "sleep")
    jobs = ("--server", server.url, "jobs")
    late = called(*jobs, "wait", job.id, "--timeout", "0", "--json")
    assert "--timeout" in json.loads(late.stdout)["error"]["remedy"]
    assert called(*jobs, "cancel", job.id).stdout == f"{job.id} is cancelled\n"
    waited = called(*jobs, "wait", job.id, "--json")
    assert json.loads(waited.stdout)["error"]["code"] == "cancelled"
    assert waited.returncode != 0


def test_what_cannot_be_asked_names_the_option_that_helps(called: Relaxc, server: RunningServer) -> None:
    nowhere = called("jobs", "ls")
    assert (nowhere.returncode, "--server URL" in nowhere.stderr) == (2, True)
    for id in ("j_fedcba98", "../models"):
        unknown = called("--server", server.url, "jobs", "show", id)
        assert (unknown.returncode, "relaxc jobs ls" in unknown.stderr) == (2, True)
    several = called("--server", server.url, "jobs", "cancel", "j_")
    assert (several.returncode, "Give more letters" in several.stderr) == (2, True)
    state = called("--server", server.url, "jobs", "ls", "--state", "lost")
    assert (state.returncode, "'queued'" in state.stderr) == (2, True)
