"""A server that is told of a tracker of TVM's RPC: tunings for its devices are measured there, for whoever asks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from relaxc.service.client import Client
from relaxc.service.jobs.once import COMPILE_ENTRY
from relaxc.service.process.sandbox import landlock
from tests import zoo
from tests.api.conftest import RunningServer
from tests.tuning.measure.test_rpc import Rpc

_TARGET = "x86-64-v2"
"""What the device runs: this machine does, and no machine is of just that kind."""

_PORT = 9090


@pytest.mark.slow
@pytest.mark.skipif(landlock.version() < landlock.TCP, reason="this kernel's Landlock knows no ports")
def test_a_tuning_asked_of_a_server_is_measured_on_a_device(
    start: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("tornado", reason="TVM's RPC tracker needs tornado")
    rpc = Rpc(tmp_path_factory.mktemp("rpc"))
    try:
        rpc.serve("board", _PORT)
        tracker = f"localhost:{rpc.port}"
        server = start(COMPILE_ENTRY, rpc_tracker=tracker, rpc_devices=f"board={_TARGET}", sandbox="auto")
        [worker] = server.client.get("/v1/workers").json()["workers"]
        assert worker["machine"]["devices"] == [{"key": "board", "target": _TARGET}]
        with Client(server.url) as client:
            made = client.tune(zoo.export("cnn", "onnx"), target=_TARGET, trials=3)
    finally:
        rpc.close()
    records = [json.loads(line) for line in made.records.splitlines()]
    assert records
    assert {record["host"] for record in records} == {"rpc:board"}
    assert all(task["failed"] == 0 for task in made.report["tasks"])


@pytest.mark.slow
def test_a_tracker_that_is_gone_is_told(start: Callable[..., RunningServer]) -> None:
    from relaxc.service.errors import ServerUnreachable

    server = start(COMPILE_ENTRY, rpc_tracker="127.0.0.1:1", rpc_devices=f"board={_TARGET}", sandbox="auto")
    with Client(server.url) as client, pytest.raises(ServerUnreachable):
        client.tune(zoo.export("cnn", "onnx"), target=_TARGET, trials=3)
