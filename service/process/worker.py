"""The zygote: has paid the imports once, and forks a fresh process for each job.

`python -m relaxc.service.process.worker --flavour onnx --control FD`. It does no work itself and starts no thread,
which is what makes the fork safe (docs/decisions/010-zygote.md). It ends when the server's end of FD closes.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import select
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relaxc.service.process.apart import shared_processes
from relaxc.service.process.bubblewrap import BEHIND, go_behind
from relaxc.service.process.early import SETTINGS_FOLLOW
from relaxc.service.process.forks import Forks
from relaxc.service.process.guard import stand_guard
from relaxc.service.process.limits import become_subreaper, name_process
from relaxc.service.process.probe import Probe, shared_here
from relaxc.service.process.strays import end_strays
from relaxc.service.process.task import Flavour
from relaxc.service.process.tvm_import import quick_import

__all__ = ["import_libraries", "main", "preload"]

# Imported before the fork, in order. onnxruntime is not here: its import starts a thread, and takes 60 ms.
_LIBRARIES = {
    Flavour.ONNX: ("tvm", "tvm.relax", "tvm.relax.frontend.onnx", "onnx", "numpy.random"),
    # What torch.export.load imports when it is first called takes 2.5 s.
    Flavour.PT2: (
        *("torch", "torch.export", "torch.export.pt2_archive._package", "torch.export._unlift"),
        *("torch._dynamo", "torch._functorch.aot_autograd", "torch.fx.experimental.symbolic_shapes"),
        *("tvm", "tvm.relax", "tvm.relax.frontend.torch", "numpy.random"),
    ),
}
_OURS = (
    "relaxc.schedules",
    "relaxc.service.frontend",
    "relaxc.service.passes",
    "relaxc.service.lowering",
    "relaxc.service.artifact",
    "relaxc.service.runtime",
)
_NOT_OURS = {
    Flavour.ONNX: ("relaxc.service.frontend.pt2",),
    Flavour.PT2: ("relaxc.service.frontend.onnx",),
}
# Extras: without them the worker still runs, and the frontend says which one a model needs.
_EXTRAS = frozenset({"onnx", "torch"})

_SETTINGS_BYTES = 1 << 20

_LAST_GUARDS_S = 4.0
"""How long guards may take to end their jobs when the server has gone; less than a server waits for its zygote."""


def import_libraries(flavour: Flavour) -> None:
    """Import what a job of this flavour will need that is not ours; `onnx` cannot import torch afterwards."""
    if flavour is Flavour.ONNX:
        sys.modules["torch"] = None  # type: ignore[assignment]  # the import system's mark of a module that is not there
    _import(_LIBRARIES[flavour])


def _import(names: Iterable[str]) -> None:
    with quick_import():
        for name in names:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] not in _EXTRAS:
                    raise


def preload(flavour: Flavour) -> None:
    """Import and find out what a job of this flavour will need."""
    import_libraries(flavour)
    _import(("relaxc.service.compiler", "relaxc.service.jobs.entries", *_our_modules(flavour)))
    # It asks by a child, and in a job's sandbox only the job itself may start CUDA.
    importlib.import_module("relaxc.service.machine").gpu()
    # A job may not read what is kept below the cache folder.
    importlib.import_module("relaxc.service.runtime.pool").pool()


def _our_modules(flavour: Flavour) -> Iterator[str]:
    """Every module of the stages but the other frontend's: which of them a compile uses is their own business."""
    for package in _OURS:
        yield package
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.startswith(_NOT_OURS[flavour]):
                yield module.name


def threads() -> int:
    """Return how many threads this process has."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


@contextmanager
def _killed_at_hangup(control: socket.socket) -> Iterator[None]:
    """While nobody reads `control`, the kernel ends this process with SIGIO when the server's end closes."""
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([control], [], [], 0)[0]:  # it closed before that: there is nothing else to read yet
        sys.exit(1)
    yield
    fcntl.fcntl(control, fcntl.F_SETFL, flags)


def _serve(control: socket.socket, shared: str) -> None:
    """Fork a guard for each channel that comes in, until the other end closes and the guards have ended.

    The kernel kills a job whose guard was killed; what the job had started comes to this process, and is killed here.
    """
    become_subreaper()

    def ended(guard: int, status: int) -> None:
        if status != 0:  # or else it has seen to its strays itself
            end_strays(forks.pids)

    def stand(_: bytes, channel: int) -> None:
        with socket.socket(fileno=channel) as connection:
            stand_guard(connection, shared)

    forks = Forks(control, stand, ended=ended)
    while forks.serve():  # a message whose channel was lost, for want of files: its sender sees the other end close
        pass
    forks.drain(_LAST_GUARDS_S)


def _take_settings(control: socket.socket) -> None:
    """Wait for the variables of the environment that are settings; leave where the other end closes before."""
    message = control.recv(_SETTINGS_BYTES)
    if not message:
        sys.exit(1)
    os.environ.update(json.loads(message))


def main() -> None:
    """Preload, say that it is ready, and fork."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", type=Flavour, required=True, choices=list(Flavour))
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument(SETTINGS_FOLLOW, action="store_true", dest="settings_follow")
    arguments = parser.parse_args()
    start = time.perf_counter()
    with socket.socket(fileno=arguments.control) as control:
        processes = shared_processes()  # of a process that is quickly forked yet
        gc.disable()  # a sixth of the imports' time
        if arguments.settings_follow and BEHIND not in os.environ:
            if os.geteuid() == 0 or not processes:  # or else this program may start anew once settings are there
                import_libraries(arguments.flavour)
            _take_settings(control)
        shared = shared_here(processes)
        go_behind(shared)
        name_process("relaxc-zygote")
        sandbox = Probe(shared)  # on another core
        with _killed_at_hangup(control):
            preload(arguments.flavour)
        gc.freeze()  # the collector leaves the shared pages of what exists now alone
        gc.enable()
        ready: dict[str, Any] = {
            "pid": os.getpid(),
            "threads": threads(),
            "seconds": round(time.perf_counter() - start, 3),
        }
        ready["sandbox"] = sandbox.result()
        control.send(json.dumps(ready).encode())
        _serve(control, shared)
    os._exit(0)  # who waits for the end need not wait for TVM to be taken apart


if __name__ == "__main__":
    main()
