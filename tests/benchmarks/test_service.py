"""What the load benchmark rests on, and what of its bars is no matter of time: memory, and that everybody gets all."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.service import load
from benchmarks.service.bars import Figure
from benchmarks.service.work import large_model
from relaxc.service.client import Client
from relaxc.service.frontend.model_file import identify
from relaxc.service.request import CompileOptions, ModelFormat
from tests.api.conftest import BY_SEED, RunningServer, make_onnx

_MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose compiles do what `tests.jobs.entries` says."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), BY_SEED)
    yield running
    running.stop()


def _peak_mib(server: RunningServer) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.slow
def test_two_hundred_listeners_get_every_event(server: RunningServer, tmp_path: Path) -> None:
    address = urlsplit(server.url)
    (tmp_path / "m.onnx").write_bytes(make_onnx(4))
    with Client(server.url) as client:
        model = client.upload(tmp_path / "m.onnx").digest
        job = client.submit("compile", model=model, options={"seed": 0, "shapes": {"sleep_s": [3]}})
    path = f"/v1/jobs/{job.id}/events"
    found = asyncio.run(load.listen(str(address.hostname), int(address.port or 0), path=path, listeners=200))
    assert found["equal"]
    assert found["events"] >= 5


@pytest.mark.slow
def test_uploads_and_downloads_do_not_fill_the_memory(server: RunningServer, tmp_path: Path) -> None:
    address = urlsplit(server.url)
    path, digest = large_model(tmp_path, 300 * _MIB)
    with Client(server.url) as client:
        assert client.upload(path).digest == digest
        before = _peak_mib(server)
        made = client.compile(path, tmp_path / "m.so", options=_weights(100))
    rates = asyncio.run(
        load.download(
            str(address.hostname), int(address.port or 0), path=f"/v1/artifacts/{made.digest}", times=3, connections=4
        )
    )
    assert len(rates["rates"]) == 12
    assert before < 200
    assert _peak_mib(server) < 200


def _weights(mib: int) -> CompileOptions:
    return CompileOptions.from_dict({"seed": 0, "shapes": {"weights_mib": [mib]}})


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunked_bodies_come_apart_anywhere(size: int) -> None:
    body = b"5\r\nhello\r\n1\r\n \r\na\r\nworld\r\n12\n\r\n"
    dechunk = load._Dechunk()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert b"".join(map(dechunk, pieces)) == b"hello world\r\n12\n"


def test_a_large_model_is_one(tmp_path: Path) -> None:
    path, digest = large_model(tmp_path, 3 * _MIB)
    assert path.stat().st_size == 3 * _MIB
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert identify(path) is ModelFormat.ONNX


def test_a_figure_knows_whether_it_holds() -> None:
    assert Figure("rate", 301.0, "MB/s", ">=", 300).holds
    assert Figure("memory", 200.0, "MiB", "<", 200).holds is False
    told = Figure("latency", 3.0, "ms")
    assert told.holds is None
    assert json.loads(told.to_json())["holds"] is None
