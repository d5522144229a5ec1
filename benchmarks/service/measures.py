"""One function a measure; each starts a server of its own on the prepared cache and gives figures with their bars."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.service.bars import Figure
from benchmarks.service.server import Server
from benchmarks.service.work import Work, large_model
from relaxc.service.client import Client
from relaxc.service.request import CompileOptions

__all__ = ["MEASURES"]

_MB, _MIB, _GIB = 1e6, 1 << 20, 1 << 30
_LISTENERS = 200
_BEFORE = 3
"""Compiles that keep the worker busy while the listeners come."""

_UPLOAD_BYTES = 2 * _GIB - _MIB  # protobuf takes no message of 2 GiB

_LIGHT = """
import sys, time
begun = time.perf_counter()
import relaxc.service.api.app
took = time.perf_counter() - begun
print(took, *sorted({"tvm", "torch", "onnx", "onnxruntime", "numpy"} & set(sys.modules)))
"""


def start(folder: Path, work: Work) -> Iterator[Figure]:
    """The import of the API, and the time from nothing to the first answer."""
    took, *heavy = subprocess.run(
        [sys.executable, "-c", _LIGHT], capture_output=True, text=True, check=True
    ).stdout.split()
    yield Figure(
        "import relaxc.service.api.app", float(took), "s", how=f"loads {' '.join(heavy) or 'neither tvm nor torch'}"
    )
    yield Figure("of these loaded: tvm, torch", len({"tvm", "torch"} & set(heavy)), "", "=", 0)
    seconds = []
    for _ in range(3):
        with Server(folder / "cache") as server:
            seconds.append(server.ready_s)
            resident = server.rss_mib
    yield Figure("ready", sorted(seconds)[1], "s", "<", 2.0, "from exec to a 200 of /healthz, median of 3")
    yield Figure("memory when ready", resident, "MiB")


def download(folder: Path, work: Work) -> Iterator[Figure]:
    """The artifact of 100 MB, from one connection and from four."""
    path = f"/v1/artifacts/{work.large}"
    with Server(folder / "cache") as server:
        _load("download", server, path=path, times=2, connections=1)
        before = server.rss_mib
        server.forget_peak()
        one = _load("download", server, path=path, times=10, connections=1)
        four = _load("download", server, path=path, times=4, connections=4)
        size = int(httpx.head(f"{server.url}{path}").headers["content-length"])
        after, peak = server.rss_mib, server.peak_mib
    how = f"median of 10 of {size / _MB:.0f} MB"
    yield Figure("artifact, one connection", one["rates"][5] / _MB, "MB/s", ">=", 300, how)
    yield Figure("artifact, four connections", 16 * size / four["seconds"] / _MB, "MB/s", ">=", 300, "together")
    yield Figure("memory while sending", peak - before, "MiB", "<", 16, f"{before:.0f} before, {after:.0f} after")


def gets(folder: Path, work: Work) -> Iterator[Figure]:
    """Small answers that nothing has to be computed for."""
    tag = {"If-None-Match": f'"{work.small}"'}
    paths: dict[str, tuple[str, dict[str, str]]] = {
        "artifact, not modified": (f"/v1/artifacts/{work.small}", tag),
        "artifact, small": (f"/v1/artifacts/{work.small}", {}),
        "manifest": (f"/v1/artifacts/{work.small}/manifest", {}),
        "job": (f"/v1/jobs/{work.job}", {}),
    }
    with Server(folder / "cache") as server:
        for name, (path, headers) in paths.items():
            found = _load("gets", server, path=path, headers=headers, connections=8, seconds=1.5)
            assert set(found["statuses"]) <= {"200", "304"}, found
            how = f"8 connections; p50 {found['p50'] * 1e3:.1f} ms, p99 {found['p99'] * 1e3:.1f} ms"
            yield Figure(f"GET {name}", found["count"] / found["seconds"], "/s", ">=", 500, how)


def listeners(folder: Path, work: Work) -> Iterator[Figure]:
    """Listeners of one compile, who are there before it starts: a compile before it keeps the worker busy."""
    with Server(folder / "cache") as server, Client(server.url) as client:
        for seed in range(_BEFORE):
            client.submit("compile", model=work.model, options=_options(seed))
        job = client.submit("compile", model=work.model, options=_options(_BEFORE), priority=-1)
        with _generator("listen", server, path=f"/v1/jobs/{job.id}/events", listeners=_LISTENERS) as generator:
            assert generator.stdout is not None
            assert generator.stdout.readline().strip() == "connected"
            late = client.job(job.id).state != "queued"
            found = json.loads(generator.communicate(timeout=60)[0])
        peak = server.peak_mib
    how = f"{found['events']} events each, " + ("some told from the past" if late else "all told live")
    yield Figure("listeners that got every event", _LISTENERS if found["equal"] else 0, "", "=", _LISTENERS, how)
    yield Figure("event latency, median", found["p50"] * 1e3, "ms")
    yield Figure("event latency, p99", found["p99"] * 1e3, "ms", how=f"largest {found['max'] * 1e3:.0f} ms")
    yield Figure("memory with the listeners", peak, "MiB")


def _options(seed: int) -> dict[str, Any]:
    return CompileOptions(opt_level=1, seed=int(time.time()) + seed).to_dict()


def upload(folder: Path, work: Work) -> Iterator[Figure]:
    """2 GiB by announced digest, and as a form; the peak is of the server's whole life."""
    path, sha256 = large_model(folder, _UPLOAD_BYTES)
    calls = {
        "PUT": ["-T", str(path), "{url}/v1/uploads/" + sha256],
        "form": ["-F", f"model=@{path}", "{url}/v1/models"],
    }
    for name, arguments in calls.items():
        with Server(folder / "cache") as server:
            httpx.delete(f"{server.url}/v1/models/{sha256}")
            command = [text.replace("{url}", server.url) for text in arguments]
            answer = folder / "answer.json"
            curl = ["curl", "-sS", "-o", str(answer), "-w", "%{http_code} %{time_total}", "-H", "Expect:", *command]
            status, seconds = subprocess.run(curl, capture_output=True, text=True, check=True).stdout.split()
            assert status == "201", answer.read_text()
            peak = server.peak_mib
            httpx.delete(f"{server.url}/v1/models/{sha256}")
        rate = path.stat().st_size / float(seconds) / _MB
        how = f"{float(seconds):.1f} s, {rate:.0f} MB/s with hashing, identification and curl"
        yield Figure(f"memory of a 2 GiB upload, {name}", peak, "MiB", "<", 200, how)


@contextmanager
def _generator(kind: str, server: Server, **arguments: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.service.load", kind, server.url, json.dumps(arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as generator:
        yield generator
    if generator.returncode:
        raise RuntimeError(f"the load generator failed: {kind}")


def _load(kind: str, server: Server, **arguments: Any) -> Any:
    with _generator(kind, server, **arguments) as generator:
        assert generator.stdout is not None
        return json.load(generator.stdout)


MEASURES: dict[str, Callable[[Path, Work], Iterator[Figure]]] = {
    "start": start,
    "download": download,
    "gets": gets,
    "listeners": listeners,
    "upload": upload,
}
