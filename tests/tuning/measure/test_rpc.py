"""Remote devices on loopback: a tracker and two servers of TVM's RPC, one of which is killed in the middle."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from relaxc.service.errors import ServerUnreachable
from relaxc.service.tuning.measure import Measurer, Outcome, RpcOptions
from relaxc.service.tuning.task import Task
from tests.tuning.measure.conftest import fault
from tests.waiting import PATIENCE_S

pytest.importorskip("tornado", reason="TVM's RPC tracker needs tornado")

Make = Callable[..., Measurer]
ROOT = Path(__file__).parents[3]
PORTS = ("--port", "21000", "--port-end", "22000")


class Rpc:
    """A tracker, and servers that are registered there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.port = self._start("tvm.exec.rpc_tracker", *PORTS)

    def serve(self, key: str, port: int = 21000) -> psutil.Process:
        """Another server, on the first port from there on that is free."""
        tracker = f"127.0.0.1:{self.port}"
        self._start("relaxc.service.tuning.measure.rpc_server", "--tracker", tracker, "--key", key, "--port", str(port))
        return psutil.Process(self.processes[-1].pid)

    def options(self, key: str) -> RpcOptions:
        """How to reach it."""
        return RpcOptions("127.0.0.1", self.port, key)

    def _start(self, module: str, *arguments: str) -> int:
        """Starts it, and returns the port that it says it has."""
        log = self.folder / f"{len(self.processes)}.log"
        with log.open("wb") as file:
            command = [sys.executable, "-m", module, "--host", "127.0.0.1", *arguments]
            self.processes.append(subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file))
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(r"bind to [\d.]+:(\d+)", log.read_text())):
            assert time.monotonic() < deadline and self.processes[-1].poll() is None, log.read_text()
            time.sleep(0.1)
        return int(found[1])

    def close(self) -> None:
        """Ends all of them."""
        for process in self.processes:
            if process.poll() is None:
                kill(psutil.Process(process.pid))
            process.wait()


def kill(process: psutil.Process) -> None:
    """A process and all below it."""
    for one in (process, *process.children(recursive=True)):
        one.kill()


@pytest.fixture(scope="module")
def rpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rpc]:
    """A tracker; every test has servers under a key of its own."""
    running = Rpc(tmp_path_factory.mktemp("rpc"))
    yield running
    running.close()


@pytest.mark.slow
def test_all_trials_get_outcomes_though_a_server_is_killed(rpc: Rpc, measurer: Make, matmul: Task) -> None:
    servers = [rpc.serve("killed"), rpc.serve("killed")]
    made = measurer(rpc=rpc.options("killed"))
    assert [o.kind for o in made.measure(matmul, [matmul.default] * 2)] == ["measured"] * 2
    outcomes: list[Outcome] = []
    work = threading.Thread(target=lambda: outcomes.extend(made.measure(matmul, [matmul.default] * 16)))
    work.start()
    time.sleep(1)
    kill(servers[0])
    work.join(PATIENCE_S)
    assert [outcome.kind for outcome in outcomes] == ["measured"] * 16
    assert all(outcome.seconds for outcome in outcomes)
    assert [o.kind for o in made.compare(matmul, [matmul.default], rounds=3)] == ["measured"] * 2


@pytest.mark.slow
def test_a_candidate_that_crashes_its_server_costs_itself(rpc: Rpc, measurer: Make, faulty: Task) -> None:
    rpc.serve("crashing")
    rpc.serve("crashing")
    made = measurer(rpc=replace(rpc.options("crashing"), session_s=10))
    kinds = {"segfault": "crashed", "wrong": "wrong", "hang": "hung", "exit": "crashed"}
    points = [point for name in kinds for point in (fault(name), fault("none"))]
    outcomes = made.measure(faulty, points)
    assert {name: outcome.kind for name, outcome in zip(kinds, outcomes[::2], strict=True)} == kinds
    assert [outcome.kind for outcome in outcomes[1::2]] == ["measured"] * len(kinds)


@pytest.mark.slow
def test_without_a_server_it_says_so(rpc: Rpc, measurer: Make) -> None:
    with pytest.raises(ServerUnreachable, match="it has no server"):
        measurer(rpc=rpc.options("other"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServerUnreachable, match=str(port)):
        measurer(rpc=RpcOptions("127.0.0.1", port, "other"))
