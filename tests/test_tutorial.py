"""docs/tutorial.md: its commands run as they stand, in order and in one shell, and print what the page says."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import ROOT

PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
_SCRIPT = re.compile(r"`(\w+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^```sh\n(.*?)^```(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The reader's folder, with the scripts of the page, `relaxc` and `python` on a path of its own."""
    for name, text in _SCRIPT.findall(PAGE):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    for name, command in {"relaxc": "-m relaxc", "python": ""}.items():
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial_runs(folder: Path) -> None:
    """Each block of commands, then a line that tells the blocks apart; the first that fails ends the shell."""
    blocks = _COMMANDS.findall(PAGE)
    ends = [f"::end of block {number}" for number in range(len(blocks))]
    script = "".join(f"{commands}echo '{end}'\n" for (commands, _), end in zip(blocks, ends, strict=True))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RELAXC_")}
    env = kept | {"PATH": f"{folder / 'bin'}:{kept['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    shell = subprocess.Popen(
        ["bash", "-e", "-m", "-o", "pipefail", "-c", script.replace("8000", str(free_port()))],
        cwd=folder,
        env=env | {"RELAXC_CACHE_DIR": str(folder / "cache"), "RELAXC_DRAIN_S": "1", "RELAXC_TUNE_QUIET_WAIT_S": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = shell.communicate(timeout=570)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, printed[-2000:] + errors[-2000:]
    for (commands, shown), end in zip(blocks, ends, strict=True):
        text, _, printed = printed.partition(f"{end}\n")
        pattern = ".*".join(map(re.escape, shown.strip().split("…")))
        assert not shown or re.fullmatch(pattern, text.strip(), re.DOTALL), f"{commands}printed {text}"


def test_every_script_is_used() -> None:
    scripts = {name for name, _ in _SCRIPT.findall(PAGE)}
    typed = "".join(commands for commands, _ in _COMMANDS.findall(PAGE))
    assert scripts and all(f"python {name}" in typed for name in scripts)
    assert len(scripts) == PAGE.count("```python")
