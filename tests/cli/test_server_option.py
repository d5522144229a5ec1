"""`relaxc --server URL` does what `relaxc` does: the same cases, here and on a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.client import Client
from tests.api.conftest import COMPILE, RunningServer, make_onnx
from tests.cli.conftest import ROOT, Relaxc
from tests.waiting import PATIENCE_S
from tests.zoo import export


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that compiles."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), COMPILE)
    yield running
    running.stop()


@pytest.fixture(params=["here", "there"])
def where(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """What comes before the verb."""
    return () if request.param == "here" else ("--server", request.getfixturevalue("server").url)


@pytest.fixture(scope="module")
def model() -> Path:
    return export("mlp", "onnx", dynamic=True)


def _json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(done.stdout)
    return value


@pytest.mark.slow
def test_a_compile_prints_the_same(relaxc: Relaxc, where: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    done = relaxc(*where, "compile", model, "-o", tmp_path / "a.so", "--seed", 3)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stderr.splitlines()] == [
        *("import", "optimize", "schedule", "build", "verify", "pack")
    ]
    names = [line.split()[0] for line in done.stdout.splitlines()[:7]]
    assert names == [str(tmp_path / "a.so"), "compiled", "stages", "target", "fused", "tuned", "verified"]
    again = relaxc(*where, "compile", model, "-o", tmp_path / "b.so", "--seed", 3)
    assert "from the store" in again.stdout
    assert again.stderr == ""
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()


@pytest.mark.slow
def test_both_make_the_same_file(relaxc: Relaxc, server: RunningServer, model: Path, tmp_path: Path) -> None:
    options = ("-O1", "--no-verify", "--target", "x86-64-v3", "--json")
    made = [
        _json(relaxc(*where, "compile", model, "-o", tmp_path / name, *options))
        for name, where in (("here.so", ()), ("there.so", ("--server", server.url)))
    ]
    assert made[0]["digest"] == made[1]["digest"]
    assert made[0]["manifest"] == made[1]["manifest"]
    assert made[0].keys() == made[1].keys()
    assert made[0]["build"].keys() - {"host"} == made[1]["build"].keys()


@pytest.mark.sampled(
    "there-arguments3-invalid-target-2", "here-arguments1-unknown-format-3", "here-arguments0-model-not-found-3"
)
@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (("missing.onnx", "-o", "x.so"), "model-not-found", 3),
        (("README.md", "-o", "x.so"), "unknown-format", 3),
        (("README.md", "-o", "nowhere/x.so"), "invalid-option", 2),
        (("{model}", "-o", "x.so", "--target", "pdp11"), "invalid-target", 2),
        (("{model}", "-o", "x.so", "--shape", "nobody=1,2"), "invalid-shape", 2),
    ],
)
def test_errors_are_the_same(
    relaxc: Relaxc, where: tuple[str, ...], model: Path, arguments: tuple[str, ...], code: str, exit_code: int
) -> None:
    done = relaxc(*where, "compile", *(text.format(model=model) for text in arguments), "--json")
    assert done.returncode == exit_code, done.stderr
    assert _json(done)["error"]["code"] == code
    assert done.stderr.splitlines()[-2].startswith(f"relaxc: error [{code}]: ")
    assert not (ROOT / "x.so").exists()


@pytest.mark.slow
def test_the_targets_are_the_servers(relaxc: Relaxc, server: RunningServer) -> None:
    found = _json(relaxc("--server", server.url, "targets", "--json"))
    assert found["targets"][0]["target"] == "auto"
    assert "runs there" in relaxc("--server", server.url, "targets").stdout


@pytest.mark.parametrize(
    "option", [("--dump", "dump"), ("--plugin", "plugin.py"), ("--force",), ("--records", "README.md")]
)
def test_what_only_works_here_is_refused(called: Relaxc, server: RunningServer, model: Path, option: Any) -> None:
    done = called("compile", model, "-o", "x.so", *option, "--json", RELAXC_SERVER=server.url)
    assert done.returncode == 2
    assert f"{option[0]} works on this machine only" in _json(done)["error"]["message"]


def test_a_verb_without_use_for_a_server_says_so(called: Relaxc) -> None:
    refused = called("--server", "http://127.0.0.1:1", "cache", "ls", "--json")
    assert refused.returncode == 2
    assert "takes no --server" in _json(refused)["error"]["message"]
    assert called("cache", "ls", RELAXC_SERVER="http://127.0.0.1:1").returncode == 0


def test_nobody_there_exits_8(called: Relaxc, model: Path) -> None:
    done = called("--server", "http://127.0.0.1:1", "compile", model, "-o", "x.so", "--json")
    assert done.returncode == 8
    assert _json(done)["error"]["code"] == "server-unreachable"
    assert called("--server", "nonsense", "compile", model, "-o", "x.so").returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_job(
    cli_env: dict[str, str], server: RunningServer, tmp_path: Path, number: signal.Signals
) -> None:
    model = export("cnn", "onnx")
    command = ["--server", server.url, "compile", str(model), "-o", str(tmp_path / "x.so"), "--seed", str(number.value)]
    process = subprocess.Popen(
        [sys.executable, "-m", "relaxc", *command], env=cli_env, cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("import")
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    with Client(server.url) as client:
        (job, *_) = client.jobs(limit="1").jobs
        assert client.wait(job.id, timeout_s=PATIENCE_S).state == "cancelled"
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_the_key_comes_from_a_file_or_the_environment(
    relaxc: Relaxc, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    running = RunningServer(tmp_path_factory.mktemp("cache"), COMPILE)
    try:
        body = {"name": "cli", "scopes": ["read"]}
        secret = running.client.post("/v1/keys", json=body).json()["secret"]
        (tmp_path / "key").write_text(f"{secret}\n")
        (tmp_path / "m.onnx").write_bytes(make_onnx(4))
        remote = ("--server", running.url)
        refused = relaxc(*remote, "compile", tmp_path / "m.onnx", "-o", tmp_path / "m.so", "--json")
        assert _json(refused)["error"]["code"] == "unauthorized"
        key_file = ("--key-file", tmp_path / "key")
        assert relaxc(*remote, *key_file, "targets").returncode == 0
        forbidden = relaxc(
            *remote, "compile", tmp_path / "m.onnx", "-o", tmp_path / "m.so", "--json", RELAXC_API_KEY=secret
        )
        assert _json(forbidden)["error"]["code"] == "forbidden"
        assert secret not in refused.stdout + refused.stderr + forbidden.stdout + forbidden.stderr
        (tmp_path / "key").write_text("two\nlines")
        assert relaxc(*remote, *key_file, "targets").returncode == 2
    finally:
        running.stop()


@pytest.mark.slow
def test_a_tuning_brings_its_records_home(relaxc: Relaxc, server: RunningServer, model: Path, tmp_path: Path) -> None:
    limits = ("--trials", 2, "--time", "30s")
    done = relaxc("--server", server.url, "tune", model, "--records", tmp_path / "records", *limits, "--json")
    assert done.returncode == 0, done.stderr
    assert _json(done)["records"] == str(tmp_path / "records")
    [listed] = server.client.get("/v1/jobs?kind=tune").json()["jobs"]
    job = server.client.get(listed["links"]["self"]).json()
    assert job["result"]["records"] == job["records"]
    report = server.client.get(f"/v1/jobs/{job['id']}/report").text
    assert str(server.cache) not in json.dumps(job) + report
    refused = relaxc("--server", server.url, "tune", model, "--tasks", "list", "--json")
    assert refused.returncode == 2
