"""`relaxc serve` as a process: where it listens, and that both signals end it in order."""

from __future__ import annotations

import signal
import subprocess
import sys

import httpx
import psutil
import pytest

from tests.cli.conftest import ROOT, Relaxc
from tests.waiting import PATIENCE_S, gone


@pytest.mark.sampled("2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_server_in_order(cli_env: dict[str, str], number: signal.Signals) -> None:
    command = [sys.executable, "-m", "relaxc", "serve", "--port", "0"]
    process = subprocess.Popen(
        command, env=cli_env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = process.stdout.readline().split()[-1]
    assert httpx.get(f"{address}/healthz", timeout=PATIENCE_S).json()["status"] == "ok"
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    assert gone(children)


def test_an_address_that_is_not_ours_is_refused(relaxc: Relaxc) -> None:
    done = relaxc("serve", "--host", "192.0.2.1", "--port", "0")
    assert done.returncode == 2
    assert "[invalid-option]" in done.stderr
