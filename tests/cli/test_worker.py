"""`relaxc worker` beside `relaxc serve --workers 0`: a real compile, over SQLite and one folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaxc.service.client import Client
from tests.api.conftest import make_onnx
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

RELAXC = (sys.executable, "-m", "relaxc")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    environment = {**os.environ, "RELAXC_CACHE_DIR": str(tmp_path / "cache"), "RELAXC_SANDBOX": "auto"}
    started: list[subprocess.Popen[str]] = []

    def go(*words: str) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([*RELAXC, *words], env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield go
    for process in reversed(started):
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split()[-1]


def test_a_worker_does_what_a_server_without_slots_takes(start: object, tmp_path: Path) -> None:
    assert callable(start)
    url = first_line(start("serve", "--port", "0", "--workers", "0"))
    model = tmp_path / "model.onnx"
    model.write_bytes(make_onnx(4))
    with Client(url) as client:
        job = client.submit("compile", model=client.upload(model).digest)
        assert job.data["missing"] == ["a worker that runs jobs other than tunings"]
        worker = start("worker", "--tune-workers", "0")
        id = first_line(worker)
        ended = client.wait(job.id)
        assert ended.state == "succeeded"
        (ran_on,) = [event.data["worker"] for event in client.events(job.id) if "worker" in event.data]
        assert ran_on == id
        shown = {each["id"]: each for each in client.workers()["workers"]}
        assert (shown[id]["role"], shown[id]["slots"]) == ("worker", {"jobs": 1, "tunings": 0})
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0
        until(lambda: id not in {each["id"] for each in client.workers()["workers"]})


def test_a_worker_that_would_run_nothing_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [*RELAXC, "worker", "--workers", "0", "--tune-workers", "0"],
        env={**os.environ, "RELAXC_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "runs nothing" in done.stderr) == (2, True)


def test_workers_are_listed(tmp_path: Path) -> None:
    environment = {**os.environ, "RELAXC_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([*RELAXC, "workers", "--json"], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"workers": []}
