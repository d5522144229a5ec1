"""The demo: its server is stopped whatever happens, and (slow) the whole of it ends well."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import httpx
import psutil
import pytest

from relaxc.service.cli import demo
from relaxc.service.errors import RelaxcError, UnknownFormat
from tests.cli.conftest import Relaxc
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
    with pytest.raises(RelaxcError, match="RELAXC_WORKERS"), demo._server(tmp_path):
        pass
    assert _servers() == []


@pytest.mark.slow
def test_an_error_of_the_server_is_an_answer_of_curl_and_raised_by_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.onnx").write_text("no model")
    with demo._server(tmp_path) as address:
        answer = demo._post(address, tmp_path / "bad.onnx", tmp_path / "bad.onnx.so")
        assert (answer.status, "unknown-format" in answer.path.read_text()) == (415, True)
        monkeypatch.setattr(shutil, "which", lambda name: None)  # as where curl is not installed
        with pytest.raises(UnknownFormat):
            demo._post(address, tmp_path / "bad.onnx", tmp_path / "bad.onnx.so")


def test_what_is_not_installed_is_named_with_the_extras_that_bring_it(
    called: Relaxc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else name)
    done = called("demo")
    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        "relaxc: error [tool-missing]: the demo needs torch",
        "remedy: pip install 'relaxc[onnx,torch,server]'.",
    ]


@pytest.mark.slow
def test_the_whole_demo(relaxc: Relaxc, tmp_path: Path) -> None:
    """From a folder that is no checkout, beside a folder named as ours was once."""
    (tmp_path / "service").mkdir()
    (tmp_path / "service/__init__.py").write_text("raise RuntimeError")
    done = relaxc("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the store" in done.stdout
    assert done.stdout.count("yes") == 2
    assert "NO" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["service"]
