"""An engine, the image that `docker/build` makes of this checkout, and containers with the settings of compose.yaml.

An engine that runs is taken; otherwise root starts Debian's `dockerd`, without networks of its own. Where the base is
not there, `docker/make-base` makes one. RELAXC_TEST_IMAGE names an image that is there already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until

ROOT = Path(__file__).parents[2]
_BASE = "relaxc-base"


def docker(*words: object) -> str:
    """What the command prints."""
    done = subprocess.run(["docker", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"docker {' '.join(map(str, words))}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def size_of(image: str, capsys: pytest.CaptureFixture[str]) -> int:
    """The bytes of an image, which are printed as well."""
    size = int(docker("image", "inspect", "--format={{.Size}}", image))
    with capsys.disabled():
        print(f"\n{image}: {size / 1e9:.3f} GB")
    return size


def docker_log(container: str) -> str:
    """What a container has printed, errors as well."""
    words = ["docker", "logs", container]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """An engine that answers; DOCKER_HOST names the one that was started for this."""
    if shutil.which("docker") is None:
        pytest.skip("no docker here (Debian: apt-get install docker.io debootstrap)")
    if _answers():
        yield
        return
    dockerd = shutil.which("dockerd", path=os.environ["PATH"] + ":/usr/sbin")
    if dockerd is None or os.geteuid() != 0:
        pytest.skip("no docker engine answers, and none can be started: that takes root and dockerd")
    root = Path(tempfile.mkdtemp(prefix="dockerd-"))
    host = f"unix://{root}/socket"
    folders = [f"--data-root={root}/data", f"--exec-root={root}/run", f"--pidfile={root}/pid"]
    command = [dockerd, "-H", host, *folders, "--iptables=false", "--ip6tables=false", "--bridge=none"]
    with (root / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as daemon:
        os.environ["DOCKER_HOST"] = host
        try:
            until(_answers, pause_s=1.0)
            yield
        finally:
            del os.environ["DOCKER_HOST"]
            daemon.terminate()
            daemon.wait()
    shutil.rmtree(root, ignore_errors=True)


def _answers() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="session")
def image(engine: None) -> str:
    """The image of this checkout."""
    if named := os.environ.get("RELAXC_TEST_IMAGE"):
        return named
    base: list[str] = []
    if not docker("images", "--quiet", "debian:bookworm-slim"):  # nothing is pulled in a test
        if shutil.which("debootstrap", path=os.environ["PATH"] + ":/usr/sbin") is None:
            pytest.skip("neither debian:bookworm-slim nor debootstrap is here")
        if not docker("images", "--quiet", _BASE):
            subprocess.run([ROOT / "docker/make-base", _BASE], check=True)
        base = ["--build-arg", f"BASE={_BASE}"]
    tag = "relaxc:under-test"
    subprocess.run([ROOT / "docker/build", tag, *base, "--network", "host"], check=True)
    return tag
