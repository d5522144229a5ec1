"""The zygote of tuning: has paid the imports once, and forks a process for each builder and runner.

`python -m service.tuning.measure.worker --control FD --parent PID --folder DIR`. It does no work itself and starts no
thread, which is what makes the fork safe (docs/decisions/010-zygote.md). When the tuner closes FD or ends, in whatever
way, it kills its workers and ends, and removes DIR if the tuner can no more; should it be killed itself, the kernel
kills the workers.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from service.process.limits import Limits, die_with_parent, name_process
from service.tuning.measure.zygote import CLOSE

__all__ = ["main"]

_ROLES = {
    "builder": "service.tuning.measure.builder_worker",
    "runner": "service.tuning.measure.runner_worker",
    "remote": "service.tuning.measure.remote_worker",
}
_PRELOADED = (
    *("tvm", "tvm.relax", "numpy.random", "schedules.cpu", "schedules.cuda"),
    *("service.lowering.apply", "service.lowering.build", "service.lowering.pipeline", "service.runtime.compare"),
    *("service.tuning.measure.builder_worker", "service.tuning.measure.runner_worker"),
)
_FILE_BYTES = 1 << 30
_LAST_BREATH_S = 1.0
"""A killed process closes its files a moment before it counts as ended."""


def main() -> None:
    """Preloads, then forks on demand until the tuner is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    name_process("relaxc-tune")
    with socket.socket(fileno=arguments.control) as control:
        sys.modules["torch"] = None  # type: ignore[assignment]  # the import system's mark of a module that is not there
        for name in _PRELOADED:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # the collector leaves the shared pages of what exists now alone
        try:
            tuner = os.pidfd_open(arguments.parent)
        except ProcessLookupError:
            shutil.rmtree(arguments.folder, ignore_errors=True)
            return
        workers: set[int] = set()
        closed = False
        try:
            closed = _serve(control, tuner, workers)
        finally:
            _end(workers)
            if not closed and select.select([tuner], [], [], _LAST_BREATH_S)[0]:
                shutil.rmtree(arguments.folder, ignore_errors=True)


def _serve(control: socket.socket, tuner: int, workers: set[int]) -> bool:
    """Forks a worker for each request, and tells of each that has ended; whether the tuner closed in good order."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    channel = control.fileno()
    while True:
        ready, _, _ = select.select([channel, woken, tuner], [], [])
        if tuner in ready:
            return False
        if woken in ready:
            os.read(woken, 1 << 12)
            _reap(control, workers)
        if channel not in ready:
            continue
        message, channels, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not channels:
            return message == CLOSE
        _fork_one(control, workers, json.loads(message), channels[0])


def _fork_one(control: socket.socket, workers: set[int], config: dict[str, Any], channel: int) -> None:
    """A worker at the other end of `channel`; its pid is the answer."""
    zygote = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(config, channel, zygote, control)
    os.close(channel)
    workers.add(pid)
    control.send(json.dumps({"pid": pid}).encode())


def _reap(control: socket.socket, workers: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            workers.discard(ended[0])
            with contextlib.suppress(OSError):  # the tuner is gone; the next select says so
                control.send(json.dumps({"ended": ended[0], "status": ended[1]}).encode())


def _end(workers: set[int]) -> None:
    """Leaves no process. Those that the workers started end by themselves: they are linkers."""
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _become(config: dict[str, Any], channel: int, zygote: int, control: socket.socket) -> None:
    """The life of a forked worker; it never returns."""
    code = 70
    try:
        control.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(zygote)
        name_process(f"relaxc-{config['role']}")
        _redirect(config.pop("log"))
        os.sched_setaffinity(0, config.pop("cpus"))
        Limits(0, config.pop("memory_bytes"), _FILE_BYTES).apply()
        serve: Callable[[Connection, dict[str, Any]], None] = importlib.import_module(_ROLES[config["role"]]).serve
        serve(Connection(channel), config)
        code = 0
    except Exception:  # noqa: BLE001  # the end of a forked process: the trace goes to its log
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # No atexit handlers and no destructors: tvm tears down threads that the fork does not have.
        os._exit(code)


def _redirect(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable(all_threads=False)


if __name__ == "__main__":
    main()
