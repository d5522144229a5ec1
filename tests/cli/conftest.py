"""The real command in a process of its own, with a cache folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relaxc.service.cli.main import main
from relaxc.service.config import settings
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
Relaxc = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session", autouse=True)
def tvm_with_its_compiler() -> None:
    """Verbs that only run artifacts would load TVM without its compiler, into this process for all tests after them."""
    import tvm  # noqa: F401


@pytest.fixture(scope="session")
def cli_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a command: no settings of the caller's, a cache that goes with the test session."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RELAXC_")}
    return {**kept, "RELAXC_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def relaxc(cli_env: dict[str, str]) -> Relaxc:
    """`relaxc("compile", model, …)` runs it and gives exit code, stdout and stderr."""

    def run(
        *arguments: object, cwd: Path = ROOT, timeout_s: float = 3 * PATIENCE_S, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "relaxc", *map(str, arguments)],
            env={**cli_env, **env},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.fixture
def called(
    cli_env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Relaxc]:
    """`relaxc` without the half second that a process takes to start: for what does not depend on the process."""

    def run(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        for name in [name for name in os.environ if name.startswith("RELAXC_")]:
            monkeypatch.delenv(name)
        for name, value in {"RELAXC_CACHE_DIR": cli_env["RELAXC_CACHE_DIR"], **env}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(ROOT)
        settings.cache_clear()
        capsys.readouterr()
        words = [str(argument) for argument in arguments]
        return subprocess.CompletedProcess(words, main(words), *capsys.readouterr())

    yield run
    settings.cache_clear()
