"""Which sandbox a job will have, found out by a process that puts itself into one and ends."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import tempfile
import traceback
from pathlib import Path
from typing import Any

from service.errors import RelaxcError
from service.process.sandbox.confine import confine
from service.process.sandbox.confinement import Confinement

__all__ = ["probe"]

_LIMIT_S = 30.0


def probe() -> dict[str, Any]:
    """Return `Sandbox.to_dict()` of a job without a model; `error` alone where none may run. Forks: no threads yet."""
    folder = Path(tempfile.mkdtemp(prefix="relaxc-probe-"))
    reader, writer = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            _tell(folder, writer)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            told = pipe.readline() if select.select([pipe], [], [], _LIMIT_S)[0] else ""
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    finally:
        shutil.rmtree(folder)
    found: dict[str, Any] = json.loads(told or '{"error": "the process that looked for a sandbox died or hung"}')
    return found


def _tell(folder: Path, writer: int) -> None:
    try:
        os.chdir(folder)
        found = confine(folder, Confinement()).to_dict()
    except RelaxcError as error:
        found = {"error": error.message}
    except Exception as error:  # noqa: BLE001  # the end of a forked process: the trace goes to the zygote's log
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"}
    os.write(writer, json.dumps(found).encode() + b"\n")
    os._exit(0)
