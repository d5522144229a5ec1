"""A worker that starts before the settings are read: for which commands, who gets it, and what it knows."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from relaxc.service.process import early
from relaxc.service.process.apart import shared_processes
from relaxc.service.process.early import start_early, take_early
from relaxc.service.process.flavour_zygote import FlavourZygote
from relaxc.service.process.task import Flavour
from relaxc.service.process.worker import _take_settings
from tests.waiting import until


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["version"],
        ["compile", "--help"],
        ["compile", "-h"],
        ["compile", "m.onnx", "--server=http://a"],
        ["--server", "http://a", "compile", "m.onnx"],
    ],
)
def test_nothing_starts_for_what_compiles_nothing_here(arguments: list[str]) -> None:
    start_early(arguments)
    assert take_early("onnx") is None and take_early("pt2") is None


def test_nothing_starts_where_a_server_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAXC_SERVER", "http://a")
    start_early(["compile", "m.onnx"])
    assert take_early("onnx") is None


@pytest.mark.slow
def test_it_is_taken_once_by_its_flavour_and_has_our_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    start_early(["compile", "m.onnx", "-o", "m.so"])
    monkeypatch.setenv("RELAXC_LOG_LEVEL", "debug")  # after it has started
    (waiting,) = early._waiting
    if os.geteuid() == 0 or not shared_processes():  # it will not start anew, and so imports meanwhile
        until(lambda: "libtvm_compiler" in Path(f"/proc/{waiting.zygote.pid}/maps").read_text())
    zygote, other = FlavourZygote(Flavour.ONNX), FlavourZygote(Flavour.ONNX)
    try:
        assert zygote.pid == waiting.zygote.pid != other.pid
        zygote.wait_ready()
        assert zygote.sandbox is not None
        started = Path(f"/proc/{zygote.pid}/environ").read_bytes()
        assert b"RELAXC_LOG_LEVEL" not in started
    finally:
        zygote.close()
        other.close()


def test_it_ends_with_a_process_that_does_not_want_it() -> None:
    code = (
        "from relaxc.service.process import early\n"
        "early.start_early(['compile', 'm.onnx'])\n"
        "print(early._waiting[0].zygote.pid, flush=True)\n"
        "import os; os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 60)[0]
    finally:
        os.close(handle)


def test_settings_come_as_a_message() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAXC_LOG_LEVEL", "warning")
        ours.send(json.dumps({"RELAXC_LOG_LEVEL": "error"}).encode())
        _take_settings(theirs)
        assert os.environ["RELAXC_LOG_LEVEL"] == "error"
        ours.close()
        with pytest.raises(SystemExit):
            _take_settings(theirs)
