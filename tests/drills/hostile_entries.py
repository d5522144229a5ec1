"""Jobs of the hostile drill: a real compile, before which some try what a model's code would, could it run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.process.task import Emit
from tests.jobs.hostile import attempt
from tests.jobs.liars import CLAIMING, claim

__all__ = ["ESCAPING", "MARKER", "SWAPPING", "SWAPS", "check_or_claim", "compile_or_escape"]

ESCAPING = 666_000_000
"""Seeds from here on try; what is above is the port of a listener on loopback."""

SWAPPING = ESCAPING + 100_000
"""Seeds from here on put something else in place of the job's log, that which `SWAPS` has at this index."""

SWAPS: dict[str, Callable[[Path, Path], None]] = {
    "a link to the key database": lambda path, cache: path.symlink_to(cache / "service.sqlite3"),
    "a link to the server's environment": lambda path, cache: path.symlink_to("/proc/self/environ"),
    "a pipe": lambda path, cache: os.mkfifo(path),
    "a second name of the key database": lambda path, cache: path.hardlink_to(cache / "service.sqlite3"),
}

_SWAPPED_S = 3.0
"""How long such a job then runs, so that its log can be asked for."""

MARKER = "hunter2-of-the-drill"
"""The value of every secret in the server's environment."""


def compile_or_escape(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Compiles; a job with an escaping seed first tells as log events what came of each attempt.

    One with a swapping seed ends with exit code 1 instead.
    """
    from service.jobs.entries import compile_model

    seed = payload["request"]["options"]["seed"]
    if seed >= SWAPPING:
        _swap(seed - SWAPPING, workdir, emit)
    elif seed >= ESCAPING:
        for name, text in _tried(seed - ESCAPING, workdir).items():
            emit({"event": "log", "level": "info", "message": f"attempt {name}: {text}"})
    compile_model(payload, workdir, emit)


def check_or_claim(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Looks at an upload, unless that has code which runs here and says that it is another model."""
    from service.jobs.entries import check_model

    with Path(payload["path"]).open("rb") as file:
        claims = file.read(len(CLAIMING)) == CLAIMING
    (claim if claims else check_model)(payload, workdir, emit)


def _swap(index: int, workdir: Path, emit: Emit) -> None:
    print("it runs", flush=True)
    made = workdir / "in its place"
    try:
        list(SWAPS.values())[index](made, Path(os.environ["RELAXC_CACHE_DIR"]))
        made.replace(workdir / "log.txt")
    except OSError as error:
        emit({"event": "log", "level": "info", "message": f"swap refused: {error.strerror}"})
    emit({"event": "stage", "stage": "swapped", "state": "start"})
    time.sleep(_SWAPPED_S)
    os._exit(1)


def _tried(port: int, workdir: Path) -> dict[str, str]:
    cache = Path(os.environ["RELAXC_CACHE_DIR"])
    database = str(cache / "service.sqlite3")
    got: dict[str, str] = {}
    attempt(
        {
            "tcp": port,
            "read": database,
            "link_and_read": database,
            "list": str(cache),
            "write": str(cache / "mine"),
            "environments": [],
        },
        workdir,
        lambda event: got.update(event["got"]),
    )
    found = got.pop("environments")
    got["secrets"] = "got one" if MARKER in found else "refused: there is none"
    return got
