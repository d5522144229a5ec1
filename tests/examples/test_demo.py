"""The demo: its server is stopped whatever happens, and (slow) the whole of it ends well."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from examples import demo
from tests.processes import command_of
from tests.waiting import PATIENCE_S


def _servers() -> list[int]:
    """Servers that this process started."""
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if "serve" in command_of(child)]


@pytest.mark.slow
def test_the_server_is_stopped_when_the_demo_breaks(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broke"), demo._server(tmp_path) as address:
        assert httpx.get(f"{address}/healthz", timeout=PATIENCE_S).status_code == 200
        raise RuntimeError("broke")
    assert _servers() == []


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAXC_WORKERS", "many")
    with pytest.raises(subprocess.CalledProcessError) as caught, demo._server(tmp_path):
        pass
    assert "RELAXC_WORKERS" in caught.value.stderr
    assert _servers() == []


@pytest.mark.slow
def test_an_error_of_the_server_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.onnx").write_text("no model")
    with demo._server(tmp_path) as address:
        answers = [demo._post(address, tmp_path / "bad.onnx", tmp_path / "bad.onnx.so")]
        monkeypatch.setattr(shutil, "which", lambda name: None)  # as where curl is not installed
        answers.append(demo._post(address, tmp_path / "bad.onnx", tmp_path / "bad.onnx.so"))
    assert [answer.status for answer in answers] == [415, 415]
    assert "unknown-format" in answers[0].path.read_text()
    demo._show_answers(answers)


@pytest.mark.slow
def test_the_whole_demo() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=demo.ROOT,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the store" in done.stdout
    assert done.stdout.count("yes") == 2
    assert "NO" not in done.stdout
