"""Where no engine can be started that is said, and is no failure: stand-ins for docker and dockerd."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.docker.engine import EngineMissing, running_engine

_NO_ENGINE = "echo 'Cannot connect to the Docker daemon' >&2; exit 1"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder of programs, with a docker that reaches no engine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("tests.docker.engine._SBIN", "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("tests.docker.engine._NEEDED_BYTES", 0)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    _program(folder / "docker", _NO_ENGINE)
    return folder


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _why() -> str:
    with pytest.raises(EngineMissing) as raised, running_engine():
        pass
    return str(raised.value)


def test_one_that_the_kernel_refuses_says_why(programs: Path) -> None:
    _program(programs / "dockerd", "echo starting; echo 'failed to start daemon: operation not permitted'; exit 1")
    assert "does not start here: failed to start daemon: operation not permitted" in _why()
    assert "DOCKER_HOST" not in os.environ


def test_nobody_but_root_starts_one(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(programs / "dockerd", "exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "that takes root and dockerd" in _why()


def test_what_is_not_installed_is_named(programs: Path) -> None:
    assert "that takes root and dockerd" in _why()
    (programs / "docker").unlink()
    assert "apt-get install docker.io" in _why()


def test_a_disk_that_is_too_small_is_named(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(programs / "dockerd", "exit 1")
    monkeypatch.setattr("tests.docker.engine._NEEDED_BYTES", 1 << 60)
    assert "GiB left for a docker engine" in _why()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_one_that_was_started_leaves_nothing(programs: Path, tmp_path: Path) -> None:
    """Neither its folder nor what it has mounted there."""
    ready = tmp_path / "ready"
    (programs / "umount").symlink_to(shutil.which("umount", path="/bin:/usr/bin") or "/bin/umount")
    _program(programs / "docker", f"[ -e {ready} ]")
    net = 'mkdir "${4#--exec-root=}"; mount -t tmpfs none "${4#--exec-root=}"'
    _program(programs / "dockerd", f"PATH=/bin:/usr/bin; {net} || exit 1; touch {ready}; exec sleep 600")
    try:
        with running_engine():
            folder = Path(os.environ["DOCKER_HOST"].removeprefix("unix://")).parent
            assert f" {folder}/run " in Path("/proc/mounts").read_text()
    except EngineMissing:
        pytest.skip("this root may not mount")
    assert not folder.exists()


def test_one_that_answers_is_taken(programs: Path) -> None:
    _program(programs / "docker", "exit 0")
    with running_engine():
        assert "DOCKER_HOST" not in os.environ
