"""Real uvicorn processes on loopback, with real children, and small models to send to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.jobs.light_worker import BY_SEED
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
COMPILE = "relaxc.service.jobs.entries:compile_model"


class RunningServer:
    """A server process, and a client of it."""

    def __init__(
        self, cache: Path, entry: str, *, no_auth: bool = False, root: Path = ROOT, **settings: object
    ) -> None:
        """Start one of the source tree `root`."""
        environment = {f"RELAXC_{name.upper()}": str(value) for name, value in settings.items()}
        if root != ROOT:
            environment["PYTHONPATH"] = str(root)
        self.cache = cache
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.api.serve", entry, *(["--no-auth"] if no_auth else [])],
            cwd=root,
            env={**os.environ, "RELAXC_CACHE_DIR": str(cache), "RELAXC_DRAIN_S": "0.5", **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), line
        self.url = line.removeprefix("listening on ").strip()
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def stop(self) -> None:
        """SIGTERM; afterwards neither a process nor a folder of it is left."""
        below = self.processes()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)
        self.close()
        _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
        assert not alive
        assert not list((self.cache / "jobs").iterdir())

    def close(self) -> None:
        """Lets go of a server that has ended."""
        self.client.close()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def processes(self) -> list[psutil.Process]:
        """Every process below the server."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def jobs(self) -> list[psutil.Process]:
        """The processes that are neither the server nor its zygotes, which are all there is when nothing runs.

        Nor those by which a zygote finds out, while it imports, what will hold its jobs.
        """
        zygotes = psutil.Process(self.process.pid).children()
        others = {process.pid for process in zygotes}
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if process.name() == "relaxc-probe":
                    others |= {process.pid, *(child.pid for child in process.children(recursive=True))}
        return [process for process in self.processes() if process.pid not in others]

    def is_at_work(self) -> bool:
        """Whether a job runs: its guard, itself and two children, not what a zygote starts with."""
        names = []
        for process in self.jobs():
            with suppress(psutil.NoSuchProcess):
                names.append(process.name())
        return "relaxc-job" in names and len(names) >= 4


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose children do what `tests.jobs.entries` says, by the seed of the options."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), BY_SEED, max_model_bytes=300 << 20)
    yield running
    running.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers with settings of their own."""
    started: list[RunningServer] = []

    def make(entry: str = BY_SEED, **settings: object) -> RunningServer:
        started.append(RunningServer(tmp_path / "cache", entry, **settings))
        return started[-1]

    yield make
    for running in started:
        running.stop() if running.process.poll() is None else running.close()


@pytest.fixture(scope="session")
def onnx_model() -> bytes:
    """y = relu(x @ w) on x[2, 4]."""
    return make_onnx(4)


def make_onnx(width: int, *, seed: int = 0) -> bytes:
    """y = relu(x @ w) with a square w of `width`, random values."""
    import numpy as np
    import onnx

    weight = np.random.default_rng(seed).standard_normal((width, width), np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("Relu", ["h"], ["y"])],
        "net",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, width])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, width])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
