"""What a tuning for somebody in this process may reach: a tracker where it was given one, and no network else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaxc.service.compiler import prepare
from relaxc.service.config import settings
from relaxc.service.errors import CompileFailed
from relaxc.service.jobs.local import calls as local
from relaxc.service.jobs.local import tune as local_tune
from relaxc.service.request import CompileRequest
from relaxc.service.tuning.options import TuneOptions
from tests.api.conftest import make_onnx
from tests.jobs.durable_entries import STRAYS


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store of this module's own, and no worker after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAXC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        settings.cache_clear()
        local._backend_of.cache_clear()
        yield
        local.local_backend().close()
        local._backend_of.cache_clear()
    settings.cache_clear()


@pytest.fixture
def request_(tmp_path: Path) -> CompileRequest:
    path = tmp_path / "net.onnx"
    path.write_bytes(make_onnx(64))
    return prepare(path)


def test_the_network_is_open_with_a_tracker_only(request_: CompileRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_tune, "ENTRY", "tests.jobs.entries:dial")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        alone = TuneOptions(seed=port)
        told = TuneOptions(seed=port, rpc_tracker=f"127.0.0.1:{port}", rpc_key="device")
        said = [local_tune.list_tasks(request_, options)["said"] for options in (alone, told)]
    assert said[0] != "connected"
    assert said[1] == "connected"


@pytest.mark.parametrize("seed", range(len(STRAYS)))
def test_a_tuning_keeps_its_files_in_its_own_journal(
    request_: CompileRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(local_tune, "ENTRY", "tests.jobs.durable_entries:stray")
    into, outside = tmp_path / "records", tmp_path / "outside"
    outside.mkdir()
    tuning = TuneOptions(seed=seed, into=str(into))
    if seed == 0:
        made = local_tune.tune_local(request_, tuning)
        assert made.files == (into / ".journal" / "r1" / "report.json",)
        assert made.files[0].read_text() == '{"run": "r1"}'
    else:
        with pytest.raises(CompileFailed, match=r"no regular file|tells no run"):
            local_tune.tune_local(request_, tuning)
        assert not list(tmp_path.rglob("report.json"))


@pytest.mark.slow
def test_a_tuning_reaches_the_devices_of_a_tracker(
    request_: CompileRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("tornado", reason="TVM's RPC tracker needs tornado")
    from tests.tuning.measure.test_rpc import Rpc

    rpc = Rpc(tmp_path_factory.mktemp("rpc"))
    try:
        rpc.serve("device")
        where = {"rpc_tracker": f"127.0.0.1:{rpc.port}", "rpc_key": "device"}
        made = local_tune.tune_local(request_, TuneOptions(trials=3, into=str(tmp_path / "records"), **where))
    finally:
        rpc.close()
    assert made.report["trials"] >= 3
    assert all(task["failed"] == 0 for task in made.report["tasks"])
