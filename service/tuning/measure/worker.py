"""The zygote of tuning: has paid the imports once, and forks a process for each builder and runner.

`python -m relaxc.service.tuning.measure.worker --control FD --parent PID --folder DIR`. It does no work itself and
starts no thread, which is what makes the fork safe (docs/decisions/010-zygote.md). When the tuner closes FD or ends, in
whatever way, it kills its workers and ends, and removes DIR if the tuner can no more; should it be killed itself, the
kernel kills the workers.
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
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from relaxc.service.process.forks import Forks
from relaxc.service.process.limits import Limits, die_with_parent, name_process
from relaxc.service.runtime.pool import pool
from relaxc.service.tuning.measure.zygote import CLOSE

__all__ = ["main"]

_ROLES = {
    "builder": "relaxc.service.tuning.measure.builder_worker",
    "runner": "relaxc.service.tuning.measure.runner_worker",
    "remote": "relaxc.service.tuning.measure.remote_worker",
    "gpu": "relaxc.service.tuning.measure.gpu_worker",
}
_PRELOADED = (
    *("tvm", "tvm.relax", "numpy.random", "relaxc.schedules.cpu", "relaxc.schedules.cuda"),
    *(
        "relaxc.service.lowering.apply",
        "relaxc.service.lowering.build",
        "relaxc.service.lowering.pipeline",
        "relaxc.service.runtime.compare",
    ),
    *(f"relaxc.service.tuning.measure.{role}_worker" for role in ("builder", "runner", "gpu")),
)
_FILE_BYTES = 1 << 30
_LAST_BREATH_S = 1.0
"""A killed process closes its files a moment before it counts as ended."""


def main() -> None:
    """Preload, then fork on demand until the tuner is gone."""
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
        pool()  # for the runner, which is killed and started again
        gc.collect()
        gc.freeze()  # the collector leaves the shared pages of what exists now alone
        try:
            tuner = os.pidfd_open(arguments.parent)
        except ProcessLookupError:
            shutil.rmtree(arguments.folder, ignore_errors=True)
            return
        _serve(control, tuner, arguments.folder)


def _serve(control: socket.socket, tuner: int, folder: Path) -> None:
    """Fork a worker for each request, answered by its pid, and tell of each that has ended, until the tuner is gone."""
    zygote = os.getpid()

    def ended(pid: int, status: int) -> None:
        with contextlib.suppress(OSError):  # the tuner is gone; the next poll says so
            _tell(control, ended=pid, status=status)

    forks = Forks(
        control,
        lambda config, channel: _become(json.loads(config), channel, zygote),
        forked=lambda pid: _tell(control, pid=pid),
        ended=ended,
    )
    closed = False
    try:
        closed = forks.serve(until=tuner) == CLOSE
    finally:
        _end(forks.pids)
        if not closed and select.select([tuner], [], [], _LAST_BREATH_S)[0]:
            shutil.rmtree(folder, ignore_errors=True)


def _tell(control: socket.socket, **facts: int) -> None:
    control.send(json.dumps(facts).encode())


def _end(workers: set[int]) -> None:
    """Leaves no process. Those that the workers started end by themselves: they are linkers."""
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _become(config: dict[str, Any], channel: int, zygote: int) -> None:
    """The life of a forked worker."""
    die_with_parent(zygote)
    name_process(f"relaxc-{config['role']}")
    _redirect(config.pop("log"))
    os.sched_setaffinity(0, config.pop("cpus"))
    Limits(0, config.pop("memory_bytes"), _FILE_BYTES).apply()
    serve: Callable[[Connection, dict[str, Any]], None] = importlib.import_module(_ROLES[config["role"]]).serve
    serve(Connection(channel), config)


def _redirect(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable(all_threads=False)


if __name__ == "__main__":
    main()
