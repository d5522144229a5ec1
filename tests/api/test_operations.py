"""A server as its operators have it: TLS, who may listen, readiness, logs, traces, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from relaxc.service.client import Client
from relaxc.service.client.retry import Patience
from relaxc.service.errors import ServerUnreachable
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.objects.keys import Keys
from tests import weaker_kernel
from tests.api.conftest import ROOT, RunningServer, make_onnx
from tests.api.jobs import ended, parsed, submit, uploaded
from tests.waiting import PATIENCE_S

Start = Callable[..., RunningServer]


@contextmanager
def serving(
    cache: Path, *arguments: str, before: Sequence[str] = (), **environment: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`relaxc serve ARGUMENTS` and its address; `before` is the command that runs it, where it is not run by itself."""
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "relaxc", "serve", "--port", "0", *arguments],
        cwd=ROOT,
        env={**os.environ, "RELAXC_CACHE_DIR": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        yield line.removeprefix("listening on ").strip(), process
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()


def test_tls_with_a_certificate_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    subprocess.run([*command, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with serving(tmp_path / "cache", "--tls-cert", str(certificate), "--tls-key", str(key)) as (url, _):
        assert url.startswith("https://127.0.0.1:")
        with httpx.Client(timeout=PATIENCE_S, verify=ssl.create_default_context(cafile=str(certificate))) as client:
            assert client.get(f"{url}/healthz").json()["status"] == "ok"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/healthz", timeout=PATIENCE_S)  # nobody that it trusts has signed it
        with Client(url, patience=Patience(unreachable_s=0.1)) as ours, pytest.raises(ServerUnreachable) as refused:
            ours.targets()
        assert "SSL_CERT_FILE" in refused.value.remedy
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with Client(url) as ours:
            assert ours.targets()


@pytest.mark.sampled("arguments0-go together", "arguments4-no key")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--tls-cert", "none.pem"), "go together"),
        (("--tls-cert", "none.pem", "--tls-key", "none.pem"), "there is no file"),
        (("--tls-cert", "README.md", "--tls-key", "README.md"), "no certificate"),
        (("--host", "0.0.0.0"), "no key"),
        (("--host", "::"), "no key"),
    ],
)
def test_what_cannot_be_served_is_refused_before_it_starts(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    command = [sys.executable, "-m", "relaxc", "serve", "--port", "0", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "RELAXC_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2, done.stderr
    assert "[invalid-option]" in done.stderr
    assert says in done.stderr


@pytest.mark.slow
def test_a_network_is_served_with_keys_or_when_told_to_be_open(tmp_path: Path) -> None:
    with serving(tmp_path, "--host", "0.0.0.0", "--no-auth") as (url, _):
        here = url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{here}/v1/models", timeout=PATIENCE_S).status_code == 200
        assert (
            httpx.get(f"{here}/v1/models", headers={"Origin": "https://evil.example"}, timeout=PATIENCE_S).status_code
            == 403
        )
    with closing(Database(f"sqlite:///{tmp_path / 'service.sqlite3'}")) as database:
        secret = Keys(database).create("ci", ["read"]).secret
    with serving(tmp_path, "--host", "0.0.0.0") as (url, _):
        here = url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{here}/v1/models", timeout=PATIENCE_S).status_code == 401
        assert (
            httpx.get(
                f"{here}/v1/models", headers={"Authorization": f"Bearer {secret}"}, timeout=PATIENCE_S
            ).status_code
            == 200
        )


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_weaker_sandbox_is_a_warning_here_and_refused_where_others_come(tmp_path: Path, host: str) -> None:
    """On a kernel without Landlock: nobody has to have set anything."""
    arguments = ("--host", host, "--no-auth")
    with serving(tmp_path, *arguments, before=weaker_kernel.command("landlock")) as (url, process):
        here = url.replace("0.0.0.0", "127.0.0.1")
        sent = {"model": ("m.onnx", make_onnx(4))}
        answer = httpx.post(f"{here}/v1/models", files=sent, timeout=PATIENCE_S)
        ready = httpx.get(f"{here}/readyz", timeout=PATIENCE_S).text
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=PATIENCE_S)
    if host == "0.0.0.0":
        assert (answer.status_code, answer.json()["code"]) == (503, "service-error")
        assert "RELAXC_SANDBOX=require" in answer.json()["detail"]
        assert "RELAXC_SANDBOX=require" in ready
    else:
        assert answer.status_code == 201, answer.text
        assert "read and write files of its user" in json.loads(ready)["sandbox"]["onnx"]["gaps"]
        assert "a hostile model could read and write files of its user" in log


@pytest.mark.slow
def test_it_is_ready_when_a_worker_is_warm_and_not_on_a_full_disk(start: Start, tmp_path: Path) -> None:
    server = start()
    deadline = time.monotonic() + PATIENCE_S
    while (answer := server.client.get("/readyz")).status_code == 503 and time.monotonic() < deadline:
        assert answer.json()["fields"]["reasons"] == ["no worker is warm yet"]
        time.sleep(0.1)
    assert answer.status_code == 200
    server.stop()
    full = start(disk_reserve_bytes=1 << 60)
    reasons = full.client.get("/readyz").json()["fields"]["reasons"]
    assert any("RELAXC_DISK_RESERVE_BYTES" in reason for reason in reasons)


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_cuts_a_drain_short(start: Start, second: signal.Signals) -> None:
    server = start(drain_s=600)
    job = submit(server, uploaded(server, make_onnx(4, seed=81)), "sleep").json()["id"]
    while server.client.get(f"/v1/jobs/{job}").json()["stage"] is None:
        time.sleep(0.05)
    server.process.send_signal(signal.SIGTERM)
    while server.client.get("/readyz").status_code != 503:
        time.sleep(0.05)
    assert server.client.get(f"/v1/jobs/{job}").json()["state"] == "running"
    server.process.send_signal(second)
    server.process.wait(PATIENCE_S)
    server.close()
    again = start()
    state = again.client.delete(f"/v1/jobs/{job}")  # it was queued again
    assert state.status_code == 202, state.text
    assert ended(again, job)["state"] == "cancelled"


@pytest.mark.slow
def test_a_drain_refuses_new_work_lets_what_runs_end_and_tells_who_listens(start: Start) -> None:
    server = start(drain_s=PATIENCE_S)
    digest = uploaded(server, make_onnx(4, seed=80))
    job = submit(server, digest, "made", shapes={"sleep_s": 8}).json()["id"]
    waiting = submit(server, digest, "made", shapes={"sleep_s": 1}).json()["id"]
    while server.client.get(f"/v1/jobs/{job}").json()["state"] == "queued":
        time.sleep(0.05)
    with httpx.stream("GET", f"{server.url}/v1/jobs/{job}/events", timeout=PATIENCE_S) as stream:
        lines = stream.iter_lines()
        server.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE_S
        while (ready := server.client.get("/readyz")).status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert any("shutting down" in reason for reason in ready.json()["fields"]["reasons"])
        refused = submit(server, digest)
        assert (refused.status_code, refused.json()["code"]) == (503, "service-error")
        assert int(refused.headers["retry-after"]) > 0
        assert server.client.get(f"/v1/jobs/{job}").json()["state"] == "running"
        events = list(parsed(lines))
    assert events[-1][1] == "done"
    assert events[-1][2]["state"] == "succeeded"
    assert server.process.wait(PATIENCE_S) in (0, -signal.SIGTERM)
    server.close()
    again = start()
    assert again.client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
    assert ended(again, waiting)["state"] == "succeeded"


@pytest.mark.slow
def test_what_does_not_end_in_time_is_queued_again_for_the_next_start(start: Start) -> None:
    server = start(drain_s=0.3)
    job = submit(server, uploaded(server, make_onnx(4, seed=81)), "made", shapes={"sleep_s": 3}).json()["id"]
    while server.client.get(f"/v1/jobs/{job}").json()["state"] == "queued":
        time.sleep(0.05)
    server.stop()
    again = start()
    found = ended(again, job)
    assert found["state"] == "succeeded"


@pytest.mark.slow
def test_log_lines_are_json_with_the_ids_they_are_about(tmp_path: Path) -> None:
    with serving(tmp_path, RELAXC_LOG_FORMAT="json", RELAXC_LOG_LEVEL="info") as (url, process):
        headers = {"X-Request-Id": "mine-2"}
        model = {"model": ("m.onnx", make_onnx(4, seed=82))}
        digest = httpx.post(f"{url}/v1/models", files=model, headers=headers, timeout=PATIENCE_S).json()["digest"]
        body = {"kind": "compile", "model": digest, "options": {"opt_level": 0}}
        job = httpx.post(f"{url}/v1/jobs", json=body, timeout=PATIENCE_S).json()["id"]
        while httpx.get(f"{url}/v1/jobs/{job}", timeout=PATIENCE_S).json()["state"] in ("queued", "running"):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    lines = [json.loads(line) for line in errors.splitlines()]
    [request] = [line for line in lines if line["logger"] == "relaxc.requests" and line.get("request") == "mine-2"]
    assert [request[name] for name in ("method", "path", "status", "owner", "key")] == [
        "POST", "/v1/models", 201, "k_local", "k_local",
    ]  # fmt: skip
    assert {"level", "timestamp", "message", "ms", "address", "bytes_in", "bytes_out"} <= set(request)
    assert any(line.get("job") == job and line["logger"] == "relaxc.jobs" for line in lines)
    assert any(line["logger"] == "relaxc.audit" for line in lines)


class _Collector(BaseHTTPRequestHandler):
    """What an OpenTelemetry collector is to a client: something that takes POSTs."""

    taken: list[bytes]

    def do_POST(self) -> None:
        """Keeps the body."""
        self.taken.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.slow
def test_traces_go_to_the_endpoint_that_is_set(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    _Collector.taken = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_address[1]}")
            server = start()
            job = submit(server, uploaded(server, make_onnx(4, seed=83))).json()["id"]
            ended(server, job)
            server.stop()
        finally:
            collector.shutdown()
            thread.join()
    spans = b"".join(_Collector.taken)
    for text in (b"job compile", b"stage build", job.encode(), b"POST /v1/jobs", b"relaxc"):
        assert text in spans


def test_the_api_imports_neither_tracing_nor_frameworks() -> None:
    code = """
import sys
import relaxc.service.api.app, relaxc.service.api.server
names = ("tvm", "torch", "onnx", "numpy", "opentelemetry.sdk", "opentelemetry.exporter", "boto3", "matplotlib")
heavy = [name for name in names if name in sys.modules]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=PATIENCE_S)
