"""Jobs of the hostile drill: a real compile, before which some try what a model's code would, could it run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relaxc.service.errors import UnsupportedModel
from relaxc.service.process.task import Emit
from tests.drills.attacks.amounts import AMOUNTS
from tests.drills.attacks.child import tries
from tests.jobs.hostile import attempt, attempt_all
from tests.jobs.liars import CLAIMING, LIES, claim

__all__ = [
    "ESCAPING",
    "LYING",
    "MARKER",
    "SWAPPING",
    "SWAPS",
    "TRYING",
    "WASTING",
    "check_or_claim",
    "compile_or_escape",
]

ESCAPING = 666_000_000
"""Seeds from here on try; what is above is the port of a listener on loopback."""

SWAPPING = ESCAPING + 100_000
"""Seeds from here on put something else in place of the job's log, that which `SWAPS` has at this index."""

WASTING, LYING, TRYING = (SWAPPING + 1000 * number for number in (1, 2, 3))
"""Seeds from these on take what AMOUNTS has at this index; lie as LIES has it, where 0 is the truth; and try everything
that `attacks.child` has, with the server's process id and a port that listens in the option `shapes`."""

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
    from relaxc.service.jobs.entries import compile_model

    seed = payload["request"]["options"]["seed"]
    if seed >= TRYING:
        _try_all({name: sizes[0] for name, sizes in payload["request"]["options"]["shapes"].items()}, emit)
    elif seed >= LYING:
        request = payload["request"]
        as_liars_do = {"request": {**request, "options": {**request["options"], "seed": seed - LYING}}}
        LIES[seed - LYING](as_liars_do, workdir, emit)
        return
    elif seed >= WASTING:
        list(AMOUNTS.values())[seed - WASTING].does(workdir, emit)
    elif seed >= SWAPPING:
        _swap(seed - SWAPPING, workdir, emit)
    elif seed >= ESCAPING:
        for name, text in _tried(seed - ESCAPING, workdir).items():
            emit({"event": "log", "level": "info", "message": f"attempt {name}: {text}"})
    compile_model(payload, workdir, emit)


def check_or_claim(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Looks at an upload, unless that has code which runs here and says that it is another model."""
    from relaxc.service.jobs.entries import check_model

    with Path(payload["path"]).open("rb") as file:
        claims = file.read(len(CLAIMING)) == CLAIMING
    (claim if claims else check_model)(payload, workdir, emit)


def _try_all(given: dict[str, int], emit: Emit) -> None:
    """Tells what came of each try, and ends: what a bomb has left is in the way of a compile."""
    every = list(tries(Path(os.environ["RELAXC_CACHE_DIR"]), given["pid"], given["port"]))
    for name, text in attempt_all(every).items():
        emit({"event": "log", "level": "info", "message": f"attempt {name}: {text}"[:500]})
    raise UnsupportedModel(f"{len(every)} attempts were made")


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
