"""Which sandbox a job will have, found out by a process that puts itself into one and ends."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

from relaxc.service.config import settings
from relaxc.service.errors import RelaxcError
from relaxc.service.process.apart import fork_first, shared_processes
from relaxc.service.process.bubblewrap import go_behind
from relaxc.service.process.limits import become_subreaper, name_process
from relaxc.service.process.sandbox.confine import confine
from relaxc.service.process.sandbox.confinement import Confinement, Place
from relaxc.service.process.scrubbed import scrubbed_environment

__all__ = ["Probe", "probe", "probed", "shared_here"]

_LIMIT_S = 30.0


def shared_here(processes: str) -> str:
    """Return why jobs share the PID namespace of this process, `processes` where that is the machine's doing; empty
    where each gets one.
    """
    return "RELAXC_SANDBOX=off" if settings().sandbox == "off" else processes


class Probe:
    """A process that finds out, while this one goes on, what a job without a model is held by."""

    def __init__(self, shared: str) -> None:
        """Start it; `shared` as in `apart.fork_first`. Forks: no threads yet."""
        self._folder = Path(tempfile.mkdtemp(prefix="relaxc-probe-"))
        self._reader, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            _tell(self._folder, writer, shared)
        os.close(writer)

    def result(self) -> dict[str, Any]:
        """Wait for it, and return `Sandbox.to_dict()`; `error` alone where no job may run."""
        try:
            with os.fdopen(self._reader) as pipe:
                told = pipe.readline() if select.select([pipe], [], [], _LIMIT_S)[0] else ""
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        found: dict[str, Any] = json.loads(told or '{"error": "the process that looked for a sandbox died or hung"}')
        return found


def probe(shared: str) -> dict[str, Any]:
    """Return what a `Probe` finds."""
    return Probe(shared).result()


def probed() -> dict[str, Any]:
    """Return what `probe` returns in a fresh process, for who has threads."""
    command = [sys.executable, "-P", "-m", __name__]
    done = subprocess.run(command, env=scrubbed_environment(), capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-500:]}
    return found


def _tell(folder: Path, writer: int, shared: str) -> None:
    """Be a guard, and have a fork tell."""
    name_process("relaxc-probe")
    become_subreaper()
    first = fork_first(lambda place: _confined(folder, writer, place), shared)
    first.start()
    first.wait()
    shutil.rmtree(folder, ignore_errors=True)  # also where whoever asked is gone by now
    os._exit(0)


def _confined(folder: Path, writer: int, place: Place) -> NoReturn:
    try:
        os.chdir(folder)
        found = confine(folder, Confinement(), place).to_dict()
    except RelaxcError as error:
        found = {"error": error.message}
    except Exception as error:  # noqa: BLE001  # the end of a forked process: the trace goes to the zygote's log
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"}
    os.write(writer, json.dumps(found).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    why = shared_here(shared_processes())
    go_behind(why)
    print(json.dumps(probe(why)))
