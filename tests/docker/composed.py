"""The server of docker/compose.yaml as one container on the host's network, by `docker run`: compose needs more."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.docker.conftest import ROOT, docker_log
from tests.docker.engine import docker
from tests.test_tutorial import free_port
from tests.waiting import until

_COMPOSE = (ROOT / "docker/compose.yaml").read_text(encoding="utf-8")
SERVICE: dict[str, Any] = yaml.safe_load(_COMPOSE)["services"]["server"]


def locked_down() -> list[str]:
    """The options of `docker run` that compose.yaml asks for, but for ports, volumes and the environment."""
    known = {"image", "environment", "ports", "volumes", "depends_on", "restart", "stop_grace_period"}
    told = {"init", "read_only", "tmpfs", "cap_drop", "security_opt"}
    assert set(SERVICE) <= known | told, "a setting of compose.yaml that no test runs"
    options = ["--network=host", "--init", "--read-only"]
    assert SERVICE["init"] is SERVICE["read_only"] is True
    options += [f"--tmpfs={path}" for path in SERVICE["tmpfs"]]
    options += [f"--cap-drop={name}" for name in SERVICE["cap_drop"]]
    return options + [f"--security-opt={_here(option)}" for option in SERVICE["security_opt"]]


def _here(option: str) -> str:
    """A path in compose.yaml is one beside it."""
    return re.sub(r"=\./", f"={ROOT}/docker/", option)


class Served:
    """A server in a container; what it keeps is in a volume, or in the database that `environment` names."""

    def __init__(self, image: str, mounts: Sequence[str] = (), **environment: str) -> None:
        self.image, self.name, self.port = image, f"relaxc-test-{uuid.uuid4().hex[:12]}", free_port()
        named = {**SERVICE["environment"], **environment}
        kept = {name: value for name, value in named.items() if "${" not in value}  # what compose asks its user for
        self._options = [*locked_down(), *(f"--volume={mount}" for mount in (f"{self.name}:/var/lib/relaxc", *mounts))]
        self._options += [f"--env={name}={value}" for name, value in kept.items()]
        docker("volume", "create", self.name)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def once(self, *command: str) -> str:
        """What a command prints in a container of its own, with the same volume and options."""
        return docker("run", "--rm", *self._options, self.image, *command)

    def run(self) -> None:
        """`docker run`; it may not listen yet."""
        command = ["relaxc", "serve", "--host", "0.0.0.0", "--port", str(self.port)]
        docker("run", "--detach", f"--name={self.name}", *self._options, self.image, *command)

    def start(self) -> None:
        """Return when it is ready."""
        self.run()
        until(lambda: self.ready() is not None or not self.runs(), pause_s=0.1)
        assert self.runs(), docker_log(self.name)

    def runs(self) -> bool:
        return docker("inspect", "--format={{.State.Running}}", self.name) == "true"

    def ready(self) -> dict[str, Any] | None:
        """What /readyz says; None while it is not ready."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return None

    def kill(self) -> None:
        """`kill -9` of all that runs in it; its volume stays."""
        docker("kill", "--signal=KILL", self.name)
        docker("rm", "--force", self.name)

    def backed_up(self, folder: Path, commands: Sequence[str]) -> None:
        """Run what docs/docker.md has for it, of the volume `relaxc`, into `folder`/backup; then give it `restored`."""
        restored = f"{self.name}-restored"
        for command in commands:
            named = re.sub(r"\brelaxc:/var", f"{self.name}:/var", command)
            named = re.sub(r"\brestored:/var", f"{restored}:/var", named).replace(
                "docker run --rm", "docker run --rm --network=none"
            )
            named = re.sub(r"\brelaxc:\d\S+", self.image, named)
            subprocess.run(["bash", "-euc", named], cwd=folder, check=True)
        self._options = [option.replace(f"{self.name}:/var", f"{restored}:/var") for option in self._options]

    @property
    def keeps_elsewhere(self) -> bool:
        """Whether its volume is a cache: the rest is in a database and a bucket."""
        return any(option.startswith("--env=RELAXC_BLOBS_URL=s3:") for option in self._options)

    def lose_volume(self) -> None:
        """Have an empty one in its place."""
        docker("volume", "rm", self.name)
        docker("volume", "create", self.name)

    def stop(self) -> int:
        """`docker stop`; its exit status."""
        docker("stop", "--time=60", self.name)
        status = int(docker("inspect", "--format={{.State.ExitCode}}", self.name))
        docker("rm", self.name)
        return status


@contextmanager
def served(image: str, mounts: Sequence[str] = (), **environment: str) -> Iterator[Served]:
    """One that goes with its volume afterwards."""
    server = Served(image, mounts, **environment)
    try:
        yield server
    finally:
        docker("rm", "--force", server.name)
        docker("volume", "rm", "--force", server.name, f"{server.name}-restored")
