"""POST /v1/compile through a real server: hits, joins, refusals, and the deaths of children and of callers."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from relaxc.service.jobs.once import COMPILE_ENTRY
from tests.api.conftest import RunningServer, make_onnx
from tests.jobs.entries import seed_of
from tests.processes import name_of
from tests.waiting import PATIENCE_S, gone, until


def post(server: RunningServer, model: bytes, **parts: Any) -> httpx.Response:
    """A compile with these options, as curl would ask for it."""
    options = {**parts.pop("options", {}), "seed": seed_of(parts.pop("entry", "made"))}
    options["shapes"] = {name: [size] for name, size in parts.pop("shapes", {}).items()}
    return server.client.post(
        "/v1/compile", files={"model": ("net.onnx", model)}, data={"options": json.dumps(options), **parts}
    )


def problem_of(response: httpx.Response) -> dict[str, Any]:
    """The problem in a response, whose form is checked."""
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert set(problem) == {
        "type",
        "title",
        "status",
        "detail",
        "code",
        "remedy",
        "fault",
        "node",
        "retryable",
        "fields",
    }
    assert problem["status"] == response.status_code
    assert problem["type"] == f"/problems/{problem['code']}"
    assert problem["detail"]
    assert problem["remedy"]
    return problem


def test_a_miss_then_a_hit_with_equal_bytes(server: RunningServer) -> None:
    own = make_onnx(8, seed=58)  # the server is shared: what the others have compiled is a hit
    first, second = post(server, own), post(server, own)
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.headers["cache-status"] == "relaxc; fwd=miss; stored"
    assert second.headers["cache-status"] == "relaxc; hit"
    assert first.content == second.content
    assert first.content.startswith(b"\x7fELF")
    assert first.headers["content-type"] == "application/octet-stream"
    assert first.headers["content-disposition"] == 'attachment; filename="net.so"'
    digest = first.headers["etag"].strip('"')
    assert first.headers["link"].startswith(f'</v1/artifacts/{digest}/manifest>; rel="describedby"')
    assert server.client.get(f"/v1/artifacts/{digest}").content == first.content


def test_the_target_and_options_are_part_of_the_request(server: RunningServer) -> None:
    own, manifests = make_onnx(8, seed=72), []
    for parts in ({"target": "x86-64-v2"}, {"target": "x86-64-v3"}, {"options": {"opt_level": 1}}):
        answer = post(server, own, **parts)
        assert answer.headers["cache-status"] == "relaxc; fwd=miss; stored"
        link = answer.headers["link"].partition(">")[0].strip("<")
        manifests.append(server.client.get(link).json())
    assert [m["target"]["name"] for m in manifests[:2]] == ["x86-64-v2", "x86-64-v3"]
    assert manifests[2]["options"]["opt_level"] == 1


def test_weights_beside_the_library_have_a_link(server: RunningServer, onnx_model: bytes) -> None:
    answer = post(server, onnx_model, shapes={"beside": 1, "weights_mib": 2})
    digest = answer.headers["etag"].strip('"')
    assert f'</v1/artifacts/{digest}/weights>; rel="related"' in answer.headers["link"]
    weights = server.client.get(f"/v1/artifacts/{digest}/weights")
    assert weights.status_code == 200
    assert len(weights.content) > 2 << 20
    assert len(answer.content) < 1 << 20
    has = server.client.get(f"/v1/artifacts/{digest}/weights", headers={"If-None-Match": weights.headers["etag"]})
    assert has.status_code == 304


def test_equal_requests_at_the_same_time_are_compiled_once(server: RunningServer) -> None:
    model = make_onnx(4, seed=1)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: post(server, model, shapes={"sleep_s": 1}), range(4)))
    assert len({answer.content for answer in answers}) == 1
    fates = sorted(answer.headers["cache-status"] for answer in answers)
    assert fates == ["relaxc; fwd=miss; stored", *["relaxc; fwd=miss; stored; collapsed"] * 3]


@pytest.mark.parametrize(
    ("entry", "status", "code"),
    [
        ("segfault", 500, "compiler-crashed"),
        ("bug", 500, "compile-failed"),
        ("refuse", 422, "unsupported-model"),
        ("link_out", 500, "compile-failed"),
    ],
)
def test_failures_are_problems_and_the_next_request_is_answered(
    server: RunningServer, onnx_model: bytes, entry: str, status: int, code: str
) -> None:
    problem = problem_of(post(server, onnx_model, entry=entry))
    assert (problem["status"], problem["code"]) == (status, code)
    assert post(server, onnx_model).status_code == 200
    until(lambda: not server.jobs())


def test_a_crash_tells_stage_signal_log_and_repro(server: RunningServer, onnx_model: bytes) -> None:
    fields = problem_of(post(server, onnx_model, entry="segfault", target="x86-64-v3"))["fields"]
    assert (fields["stage"], fields["signal"]) == ("schedule", "SIGSEGV")
    assert "about to crash" in fields["log_tail"]
    assert fields["repro"] == "relaxc compile net.onnx -o out.so --target x86-64-v3 --seed 1"


@pytest.mark.slow
def test_a_child_over_its_memory_and_one_over_its_time(start: Callable[..., RunningServer], onnx_model: bytes) -> None:
    server = start(compile_timeout_s=15, compile_memory_bytes=512 << 20)
    for entry, status, code in (
        ("sleep", 504, "compiler-timeout"),
        ("hog", 507, "compiler-out-of-memory"),
        ("made", 200, ""),
    ):
        answer = post(server, onnx_model, entry=entry)
        assert answer.status_code == status
        assert not code or problem_of(answer)["code"] == code
        until(lambda: not server.jobs())


def test_kill_9_of_a_child(server: RunningServer, onnx_model: bytes) -> None:
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(post, server, onnx_model, entry="sleep")
        until(server.is_at_work)
        job = next(process for process in server.jobs() if name_of(process) == "relaxc-job")
        job.send_signal(signal.SIGKILL)
        problem = problem_of(answer.result(PATIENCE_S))
    assert (problem["code"], problem["fields"]["signal"]) == ("compiler-crashed", "SIGKILL")
    until(lambda: not server.jobs())
    assert post(server, onnx_model).status_code == 200


def test_kill_9_of_the_zygotes(server: RunningServer, onnx_model: bytes) -> None:
    for zygote in psutil.Process(server.process.pid).children():
        zygote.kill()
    assert post(server, make_onnx(4, seed=2)).status_code == 200
    assert post(server, onnx_model).status_code == 200


@pytest.mark.slow
def test_more_than_the_queue_holds(start: Callable[..., RunningServer]) -> None:
    server = start(queue_max=1)
    models = [make_onnx(4, seed=seed) for seed in range(3)]
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(post, server, models[0], entry="sleep")
        until(lambda: server.client.get("/healthz").json()["running"] == 1)
        waiting = threads.submit(post, server, models[1], entry="sleep")
        until(lambda: server.client.get("/healthz").json()["waiting"] == 1)
        refused = post(server, models[2])
        assert problem_of(refused)["code"] == "busy"
        assert refused.headers["retry-after"].isdigit()
        server.process.send_signal(signal.SIGTERM)
        for answer in (running, waiting):
            assert problem_of(answer.result(PATIENCE_S))["code"] == "service-error"
    server.process.wait(PATIENCE_S)


def test_a_caller_that_goes_away_leaves_a_compile_that_ends_in_the_store(server: RunningServer) -> None:
    model = make_onnx(4, seed=3)
    data = {"options": json.dumps({"seed": 0, "shapes": {"sleep_s": [2]}})}

    async def ask_and_go() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
            asking = asyncio.create_task(client.post("/v1/compile", files={"model": model}, data=data))
            await asyncio.to_thread(until, lambda: server.client.get("/healthz").json()["running"] == 1)
            asking.cancel()
            await asyncio.wait([asking])

    asyncio.run(ask_and_go())
    again = post(server, model, shapes={"sleep_s": 2})
    assert again.headers["cache-status"] in ("relaxc; hit", "relaxc; fwd=miss; stored; collapsed")


@pytest.mark.slow
def test_a_server_stops_while_its_workers_import(start: Callable[..., RunningServer], onnx_model: bytes) -> None:
    server = start()
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(post, server, onnx_model)
        until(lambda: list(server.cache.glob("jobs/*/upload-*")))
        server.process.send_signal(signal.SIGTERM)
        answer.exception(PATIENCE_S)
    server.process.wait(PATIENCE_S)
    assert not list((server.cache / "jobs").iterdir())


@pytest.mark.slow
def test_kill_9_of_the_server_leaves_no_process_and_the_next_one_no_folder(
    start: Callable[..., RunningServer], onnx_model: bytes
) -> None:
    server = start()
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(post, server, onnx_model, entry="sleep")
        until(server.is_at_work)
        below = server.processes()
        server.process.kill()
        server.process.wait()
        with pytest.raises(httpx.HTTPError):
            answer.result(PATIENCE_S)
    assert gone(below)
    assert list((server.cache / "jobs").iterdir())
    again = start()
    (job,) = again.client.get("/v1/jobs").json()["jobs"]  # queued again
    assert again.client.delete(job["links"]["self"]).status_code == 202
    assert post(again, onnx_model).status_code == 200  # its stop finds the folder of jobs empty


def test_the_api_process_has_no_framework(start: Callable[..., RunningServer], onnx_model: bytes) -> None:
    server = start()
    assert post(server, onnx_model).status_code == 200
    mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert not [name for name in ("libtvm", "libtorch", "onnx_cpp2py", "libonnxruntime") if name in mapped]


def test_importing_the_application_loads_no_framework() -> None:
    code = (
        "import sys, relaxc.service.api.server\n"
        "sys.exit(' '.join({'tvm', 'torch', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_port_in_use_is_said(tmp_path: Path) -> None:
    from relaxc.service.api import serve
    from relaxc.service.errors import InvalidOption

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InvalidOption, match="cannot listen"):
        serve("127.0.0.1", taken.getsockname()[1])


def _with_samples(server: RunningServer, samples: str) -> httpx.Response:
    import numpy as np

    file = io.BytesIO()
    np.savez(file, x=np.random.default_rng(0).standard_normal((16, 8)).astype("float32"))
    options = {"precision": "int8", "calibration": {"samples": samples, "max_error": 0.05}}
    sent = [("model", ("net.onnx", make_onnx(8, seed=91))), ("data", ("samples.npz", file.getvalue()))]
    return server.client.post("/v1/compile", files=sent, data={"options": json.dumps(options)}, timeout=PATIENCE_S)


@pytest.mark.slow
def test_int8_with_samples_that_are_sent_beside_the_model(start: Callable[..., RunningServer]) -> None:
    server = start(COMPILE_ENTRY)
    made = _with_samples(server, "samples.npz")
    assert made.status_code == 200, made.text
    manifest = server.client.get(f"/v1/artifacts/{made.headers['etag'].strip(chr(34))}/manifest").json()
    assert manifest["options"]["precision"] == "int8" and manifest["verification"]["passed"]
    found = manifest["passes"]["calibration"]
    assert found["samples"] == 8 and found["outputs"][0]["error"] <= 0.05
    assert _with_samples(server, "samples.npz").headers["cache-status"] == "relaxc; hit"


@pytest.mark.parametrize("samples", ["/etc/passwd", "../samples.npz", "a/b.npz"])
def test_samples_are_no_path(server: RunningServer, samples: str) -> None:
    refused = problem_of(_with_samples(server, samples))
    assert (refused["code"], refused["status"]) == ("invalid-option", 400)
    assert "plain name" in refused["detail"]
