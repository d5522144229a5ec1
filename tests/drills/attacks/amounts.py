"""What a job takes without end, whose model runs an attacker's code: each ends with an error that names the limit."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxc.service.process.task import Emit
from tests.jobs import entries

__all__ = ["AMOUNTS", "LIMITS", "Amount"]

LIMITS = {"COMPILE_MEMORY_BYTES": 3 << 30, "COMPILE_FILE_BYTES": 256 << 20, "COMPILE_DISK_BYTES": 512 << 20}
"""Settings of the server that a good compile does not come near to."""

_MEMORY = frozenset({"compiler-out-of-memory"})
_DISK = frozenset({"compiler-out-of-disk"})
_ENDED = frozenset({"compiler-crashed", "compile-failed", "compiler-out-of-memory"})


@dataclass(frozen=True, slots=True)
class Amount:
    """What the job does, and the errors with which it may end."""

    does: Callable[[Path, Emit], None]
    ends: frozenset[str]


def _with(entry: Callable[[dict[str, Any], Path, Emit], None], **payload: Any) -> Callable[[Path, Emit], None]:
    return lambda workdir, emit: entry(payload, workdir, emit)


def _many_files(workdir: Path, emit: Emit) -> None:
    """Files without a byte: names and inodes are the disk's too."""
    for number in itertools.count():
        folder = workdir / f"folder-{number // 1000}"
        folder.mkdir(exist_ok=True)
        (folder / str(number)).touch()


def _endless_log(workdir: Path, emit: Emit) -> None:
    while True:
        print("x" * 100_000)


def _sparse(workdir: Path, emit: Emit) -> None:
    """A file that is larger than it takes: its size has a limit of its own."""
    with (workdir / "sparse").open("wb") as file:
        file.truncate(1 << 40)


def _endless_events(workdir: Path, emit: Emit) -> None:
    for number in range(20_000):
        emit({"event": "log", "level": "info", "message": f"{number} " + "x" * 500})
    os._exit(1)


def _deep_result(workdir: Path, emit: Emit) -> None:
    emit({"event": "result", "files": ["x" * (2 << 20)]})
    os._exit(0)


def _crowd_in_sessions(workdir: Path, emit: Emit) -> None:
    """Each gets away from the group of its parent."""
    for _ in range(5000):
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
    time.sleep(600)


AMOUNTS: dict[str, Amount] = {
    "memory in one process": Amount(_with(entries.hog), _MEMORY),
    "memory in many processes": Amount(_with(entries.hog_in_children, count=8, each_bytes=1 << 30), _MEMORY),
    "shared memory": Amount(_with(entries.hog_shared, bytes=4 << 30), _MEMORY),
    "one file": Amount(_with(entries.big_file), _DISK),
    "a sparse file": Amount(_sparse, _DISK),
    "many files": Amount(_with(entries.fill, how="many", size=32 << 20), _DISK),
    "removed files": Amount(_with(entries.fill, how="removed", size=32 << 20), _DISK),
    "deep folders": Amount(_with(entries.fill, how="deep"), _DISK),
    "closed folders": Amount(_with(entries.fill, how="closed", size=32 << 20), _DISK | _ENDED),
    "files without a byte": Amount(_many_files, _DISK),
    "a log without end": Amount(_endless_log, _DISK | _ENDED),
    "events without end": Amount(_endless_events, _ENDED),
    "a line without end": Amount(_with(entries.endless_line), _ENDED),
    "nonsense": Amount(_with(entries.garble), _ENDED),
    "a result that is too large": Amount(_deep_result, _ENDED),
    "processes in sessions of their own": Amount(_crowd_in_sessions, _ENDED),
    "a crash": Amount(_with(entries.segfault), _ENDED),
    "an end without a word": Amount(_with(entries.leave), _ENDED),
}
