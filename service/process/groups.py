"""Where a server may make control groups for its jobs: found out, made ready, and cleared of what killed servers left.

base             the server's own group, delegated to it, or the machine's first where root may use that
├── relaxc-server    the server, its zygotes and guards: a group that has groups with limits has no processes itself
└── relaxc-job-…     the processes of one job (`process/group.py`)
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from relaxc.service.cgroups import Place, unified
from relaxc.service.config import settings
from relaxc.service.errors import ServiceError
from relaxc.service.process.group import JOB, JobGroup, end_left, held

__all__ = ["SERVER", "Bound", "Groups", "bound_of_settings", "claim_groups", "why_no_groups"]

SERVER = "relaxc-server"
_WANTED = ("cpu", "memory", "pids")
_ROUNDS = 10  # of moving processes, which may fork meanwhile


@dataclass(frozen=True, slots=True)
class Groups:
    """The group in which each job gets one of its own, and the controllers that bound it."""

    base: Path
    controllers: tuple[str, ...]

    def sweep(self) -> None:
        """End and remove the groups of jobs whose guards are dead."""
        for folder in self.base.glob(f"{JOB}*"):
            with contextlib.suppress(OSError), held(folder) as is_left:
                if is_left:
                    end_left(folder)

    def tried(self) -> Groups:
        """Return these once a process could be put into a group and ended with it. Raise OSError where not."""
        group = JobGroup(self.base, memory_bytes=1 << 30, processes=1 << 10)
        try:
            with subprocess.Popen(["sleep", "600"]) as process:
                try:
                    group.take(process.pid)
                finally:
                    process.kill()
        finally:
            group.close()
        return self


@dataclass(frozen=True, slots=True)
class Bound:
    """What bounds the processes of each job together: control groups, or nothing, and why."""

    groups: Groups | None = None
    missing: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values: `together` has what is bounded for all processes of a job."""
        groups = self.groups
        return {
            "together": [] if groups is None else list(groups.controllers),
            "cgroup": None if groups is None else str(groups.base),
            "missing": self.missing,
        }


def bound_of_settings() -> Bound:
    """Return what RELAXC_CGROUPS gives here. Raise ServiceError where it requires what is not to be had."""
    wish = settings().cgroups
    if wish == "off":
        return Bound(missing="RELAXC_CGROUPS=off")
    try:
        return Bound(claim_groups())
    except OSError as error:
        if wish == "require":
            what = f"jobs cannot have control groups (RELAXC_CGROUPS=require): {error}"
            raise ServiceError(what, remedy="`relaxc doctor` says what would help.") from error
        return Bound(missing=str(error))


def claim_groups() -> Groups:
    """Return where jobs get groups; this process moves into one beside them if need be, with those that it started.

    Raise OSError, which says why, where the kernel, the machine or our rights do not allow it.
    """
    place = unified()
    if why := _refusal(place):
        raise OSError(why)
    assert place is not None
    base = _base(place)
    offered = [name for name in _WANTED if name in _words(base / "cgroup.controllers")]
    wanted = [name for name in offered if name not in _words(base / "cgroup.subtree_control")]
    if wanted:
        _enable(base, wanted)
    groups = Groups(base, tuple(offered)).tried()
    groups.sweep()
    return groups


def why_no_groups() -> str:
    """Return why a server that is started as this process was would have no groups, empty where nothing speaks against
    it; changes nothing."""
    return _refusal(unified())


def _refusal(place: Place | None) -> str:
    if place is None:
        return "control groups of version 2 are not mounted"
    base = _base(place)
    if "memory" not in _words(base / "cgroup.controllers"):
        return f"{base} has no memory controller: it is version 1's, or was not delegated"
    if not all(os.access(path, os.W_OK) for path in (base, base / "cgroup.subtree_control", base / "cgroup.procs")):
        return f"{base} is not ours to write"
    if "memory" not in _words(base / "cgroup.subtree_control") and _has_others(base):
        return f"{base} has processes that are not the server's"
    return ""


def _base(place: Place) -> Path:
    """The server's own group, also once it has moved into the one beside its jobs."""
    return place.folder.parent if place.folder.name == SERVER and place.folder != place.top else place.folder


def _has_others(base: Path) -> bool:
    """Whether there are processes that we may not move. The machine's first group alone may have some beside groups."""
    return (base / "cgroup.type").exists() and bool(set(_processes(base)) - _ours())


def _enable(base: Path, controllers: list[str]) -> None:
    control, wanted = base / "cgroup.subtree_control", " ".join(f"+{name}" for name in controllers)
    for _ in range(_ROUNDS):
        try:
            control.write_text(wanted)
            return
        except OSError as error:
            if error.errno != errno.EBUSY or _has_others(base):
                raise
        _move_out(base)
    raise OSError(errno.EBUSY, f"{base} keeps having processes")


def _move_out(base: Path) -> None:
    (base / SERVER).mkdir(exist_ok=True)
    for pid in _processes(base):
        with contextlib.suppress(ProcessLookupError):
            (base / SERVER / "cgroup.procs").write_text(str(pid))


def _ours() -> set[int]:
    """This process, what it started, and the first of a container, which has started it."""
    return {1, os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}


def _processes(folder: Path) -> Iterator[int]:
    return (int(word) for word in _words(folder / "cgroup.procs") if word != "0")  # 0: of another PID namespace


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
