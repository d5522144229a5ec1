"""An engine to build and run containers with: one that runs, else Debian's `dockerd`, which root can start."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import until

__all__ = ["EngineMissing", "docker", "running_engine"]

_SBIN = ":/usr/sbin:/sbin"
_NEEDED_BYTES = 20 << 30
"""A storage driver without layers (vfs) copies an image at each step of its build: some 15 GB at most."""


class EngineMissing(Exception):
    """Why there is none here."""


def docker(*words: object) -> str:
    """What the command prints."""
    done = subprocess.run(["docker", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"docker {' '.join(map(str, words))}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


@contextmanager
def running_engine() -> Iterator[None]:
    """An engine that answers while the block runs; DOCKER_HOST names one started for it. Raises EngineMissing."""
    if shutil.which("docker") is None:
        raise EngineMissing("no docker here (Debian: apt-get install docker.io debootstrap)")
    if _answers():
        yield
        return
    dockerd = shutil.which("dockerd", path=os.environ["PATH"] + _SBIN)
    if dockerd is None or os.geteuid() != 0:
        raise EngineMissing("no docker engine answers, and none can be started: that takes root and dockerd")
    root = Path(tempfile.mkdtemp(prefix="dockerd-"))
    try:
        if shutil.disk_usage(root).free < _NEEDED_BYTES:
            raise EngineMissing(f"{root.parent} has less than {_NEEDED_BYTES >> 30} GiB left for a docker engine")
        with _started(dockerd, root):
            yield
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _started(dockerd: str, root: Path) -> Iterator[None]:
    """One without networks of its own, which a kernel may refuse."""
    host = f"unix://{root}/socket"
    folders = [f"--data-root={root}/data", f"--exec-root={root}/run", f"--pidfile={root}/pid"]
    command = [dockerd, "-H", host, *folders, "--iptables=false", "--ip6tables=false", "--bridge=none"]
    with (root / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as daemon:
        os.environ["DOCKER_HOST"] = host
        try:
            until(lambda: _answers() or daemon.poll() is not None, pause_s=1.0)
            if daemon.poll() is not None:
                raise EngineMissing(f"{dockerd} does not start here: {_last_line(root / 'log')}")
            yield
        finally:
            del os.environ["DOCKER_HOST"]
            daemon.terminate()
            daemon.wait()
            for where in _mounts_below(root):
                subprocess.run(["umount", where], check=False)


def _mounts_below(folder: Path) -> list[str]:
    """What it leaves mounted, such as the network that containers share with the host; the innermost first."""
    found = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    return [where for where in reversed(found) if where.startswith(f"{folder}/")]


def _answers() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it prints nothing")
