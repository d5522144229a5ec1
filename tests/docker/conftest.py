"""The images that `docker/build` makes of this checkout, in an engine, and how large they are.

Where the base is not there, `docker/make-base` makes one. RELAXC_TEST_IMAGE names an image that is there already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.engine import EngineMissing, docker, running_engine

ROOT = Path(__file__).parents[2]
_DEBIAN = "debian:bookworm-slim"
_BASE = "relaxc-base"


def told(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """Prints it where everybody sees it, also of a test that passes."""
    with capsys.disabled():
        print(f"\n{line}", flush=True)


def size_of(image: str, capsys: pytest.CaptureFixture[str]) -> int:
    """The bytes of an image, which are printed as well."""
    size = int(docker("image", "inspect", "--format={{.Size}}", image))
    told(capsys, f"{image}: {size / 1e9:.3f} GB")
    return size


def docker_log(container: str) -> str:
    """What a container has printed, errors as well."""
    words = ["docker", "logs", container]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True).stdout


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """An engine that answers."""
    try:
        with running_engine():
            yield
    except EngineMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def base(engine: None) -> str:
    """What the images begin with: Debian's, where it is there, as nothing is pulled in a test. Containers of it run."""
    name = _DEBIAN
    if not docker("images", "--quiet", name):
        name = _BASE
        if shutil.which("debootstrap", path=os.environ["PATH"] + ":/usr/sbin") is None:
            pytest.skip(f"neither {_DEBIAN} nor debootstrap is here")
        if not docker("images", "--quiet", name):
            subprocess.run([ROOT / "docker/make-base", name], check=True)
    tried = subprocess.run(["docker", "run", "--rm", "--network=host", name, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"this kernel runs no container: {tried.stderr.strip()}")
    return name


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest) -> str:
    """The image of this checkout."""
    if named := os.environ.get("RELAXC_TEST_IMAGE"):
        request.getfixturevalue("engine")
        return named
    base = request.getfixturevalue("base")
    tag = "relaxc:under-test"
    subprocess.run([ROOT / "docker/build", tag, "--build-arg", f"BASE={base}", "--network", "host"], check=True)
    return tag
