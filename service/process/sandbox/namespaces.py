"""A job's own view of the machine: no network, no processes but its own, and files that only it may write."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from relaxc.service.process.sandbox.kernel import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    make_read_only,
    make_writable,
    mount,
    unshare,
)

__all__ = ["keep_files", "leave_network", "leave_processes", "make_reachable", "own_proc"]

_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 4096, 16384, 1 << 18, 2, 4, 8
_PROC = Path("/proc")


def leave_network() -> None:
    """Let this process see a network without interfaces from now on. Raise OSError where it may not leave its own."""
    _leave(CLONE_NEWNET)


def leave_processes() -> None:
    """Let what this process forks from now on see no process but its own descendants; the first fork is their init.

    When the init ends, the kernel kills all of them. Raise OSError where none of it is allowed.
    """
    _leave(CLONE_NEWPID)


def own_proc() -> None:
    """Mount a /proc of this process's own namespace. Raise OSError where it may not, as under a masked one."""
    _leave_mounts()
    mount("proc", str(_PROC), "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def keep_files(writable: Iterable[Path]) -> None:
    """Have this process change nothing of any file but below `writable`: not its bytes, mode, owner, times or name.

    The current folder has to be entered anew. Raise OSError where mounts are denied.
    """
    _leave_mounts()
    kept = [path for path in writable if path.exists()]
    for path in kept:
        mount(str(path), str(path), "", _MS_BIND | _MS_REC)
    make_read_only(Path("/"))
    for path in kept:
        make_writable(path)
    with contextlib.suppress(OSError):  # where the CUDA driver names its threads; Landlock holds the rest of it
        make_writable(_PROC)


def _leave(kinds: int) -> None:
    """Leave namespaces of these kinds; who may not do so by right becomes the root of a user namespace first.

    There the process has a count of its own for RLIMIT_NPROC; user and group ids stay what they are.
    """
    try:
        unshare(kinds)
        return
    except PermissionError:
        if os.geteuid() == 0:
            raise
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | kinds)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _leave_mounts() -> None:
    _leave(CLONE_NEWNS)
    mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def make_reachable(paths: Iterable[Path]) -> None:
    """Mount `paths` where they are for this process alone, and open the way to them, which others than root lack.

    Over the first folder on the way that only its owner may pass, such as /root, an empty one is mounted that all may
    pass; it has the way to `paths`, and nothing else of what the folder has. Raise OSError where mounts are denied.
    """
    hidden = [(path, top) for path in paths if path.exists() and (top := _first_closed(path)) is not None]
    if not hidden:
        return
    _leave_mounts()
    with ExitStack() as closing:
        opened = {}
        for path, _ in hidden:
            opened[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
            closing.callback(os.close, opened[path])
        for top in {top for _, top in hidden}:
            mount("relaxc", str(top), "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
        for path, fd in sorted(opened.items()):  # a folder before what is in it
            if not path.exists():
                _stand_in(path, fd)
                mount(f"/proc/self/fd/{fd}", str(path), "", _MS_BIND | _MS_REC)


def _first_closed(path: Path) -> Path | None:
    """The folder nearest to the root that `path` is behind and that not everybody may pass."""
    return next((folder for folder in _way(path) if not folder.stat().st_mode & stat.S_IXOTH), None)


def _way(path: Path) -> Iterator[Path]:
    """The folders above `path`, from the root on."""
    return reversed(path.parents)


def _stand_in(path: Path, fd: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        path.mkdir()
    else:
        path.touch()
