"""A package of a small artifact, made once for all processes of a test run, and its library through ctypes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from relaxc.service.packaging.package import make_package
from tests.packaging.native import Library
from tests.runtime.conftest import artifact, linear, twice

__all__ = ["artifact", "library", "linear", "package", "twice"]


@pytest.fixture(scope="session")
def package(artifact: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package of Linear."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if shared.name.startswith("popen-") else shared
    folder = shared / "package"
    with FileLock(f"{folder}.lock", timeout=600):
        if not folder.is_dir():
            made = make_package(artifact(), folder, archive=True)
            (shared / "package.json").write_text(
                json.dumps({"size_bytes": made.size_bytes, "libraries": made.libraries})
            )
    return folder


@pytest.fixture(scope="session")
def library(package: Path) -> Library:
    """The package's library, in this process."""
    return Library(package / "lib/librelaxc_runtime.so")


@pytest.fixture
def cmake() -> str:
    """The program, where it is installed."""
    found = shutil.which("cmake")
    if found is None:
        pytest.skip("cmake is not installed")
    return found
