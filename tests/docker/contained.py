"""The hostile drill's server in a container of the image, with the settings of compose.yaml."""

from __future__ import annotations

import shutil
import uuid
from functools import cached_property
from pathlib import Path

import httpx
import psutil

from tests.docker.composed import locked_down
from tests.docker.conftest import ROOT, docker_log
from tests.docker.engine import docker
from tests.drills.hostile_server import ENTRIES, GIVEN, HostileServer
from tests.waiting import until

__all__ = ["ContainedServer"]

_USER = 10001
_SAYS = "listening on http://127.0.0.1:"
_OF_A_JOB = ("relaxc-job", "relaxc-guard", "relaxc-init")


class ContainedServer(HostileServer):
    """The image's relaxc; of this checkout it has `tests`, which says what hostile jobs do."""

    def __init__(self, folder: Path, user: int | None, image: str) -> None:
        assert user is None, "the image says whose it is"
        self._make(folder)
        self._last = ""
        drill = folder / "drill" / "tests"
        shutil.copytree(ROOT / "tests", drill, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (self.cache, *self.cache.rglob("*")):
            shutil.chown(path, _USER, _USER)
        self.name = f"relaxc-drill-{uuid.uuid4().hex[:12]}"
        volumes = [f"--volume={self.cache}:/var/lib/relaxc", f"--volume={drill.parent}:/drill:ro"]
        given = {**GIVEN, "RELAXC_SANDBOX": "require", "PYTHONPATH": "/drill"}
        settings = [f"--env={name}={value}" for name, value in given.items()]
        command = ["python3", "-m", "tests.api.serve", *ENTRIES]
        docker("run", "--detach", f"--name={self.name}", *locked_down(), *volumes, *settings, image, *command)
        until(lambda: _SAYS in self.told() or not self._runs(), pause_s=0.2)
        assert self._runs(), self.told()
        [line] = [line for line in self.told().splitlines() if line.startswith(_SAYS)]
        self.url = line.removeprefix("listening on ").strip()
        self.client = httpx.Client(base_url=self.url, timeout=120)

    @cached_property
    def process(self) -> psutil.Process:  # type: ignore[override]  # what the drill asks of it is its id
        """The server, by the host's ids: what the container's init has started."""
        init = psutil.Process(int(docker("inspect", "--format={{.State.Pid}}", self.name)))
        [server] = init.children()
        return server

    @property
    def seen_pid(self) -> int:
        """Its id in the container."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        [line] = [line for line in status.splitlines() if line.startswith("NSpid:")]
        return int(line.split()[-1])

    def told(self) -> str:
        """What the container has printed, also once it is gone."""
        return self._last or docker_log(self.name)

    def jobs(self) -> list[psutil.Process]:
        """Processes of jobs that live."""
        return [each for each in self.process.children(recursive=True) if each.name().startswith(_OF_A_JOB)]

    def end(self) -> None:
        """Stops and removes it."""
        self.client.close()
        self._last = docker_log(self.name)
        docker("rm", "--force", self.name)

    def _runs(self) -> bool:
        return docker("inspect", "--format={{.State.Running}}", self.name) == "true"
