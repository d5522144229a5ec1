"""A job's own view of the machine: a network with nothing in it, and a way to its files for a user without rights."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from service.process.sandbox.kernel import CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWUSER, mount, unshare

__all__ = ["leave_network", "make_reachable"]

_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV = 4096, 16384, 1 << 18, 2, 4


def leave_network() -> None:
    """From now on this process sees a network without interfaces. Raise OSError where it may not leave its own.

    Who is not root has to become the root of a user namespace for it, where the process then has a count of its own
    for RLIMIT_NPROC; user and group ids stay what they are.
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        unshare(CLONE_NEWNET)
        return
    unshare(CLONE_NEWUSER | CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def make_reachable(paths: Iterable[Path]) -> None:
    """Mount `paths` where they are for this process alone, and open the way to them, which others than root lack.

    Over the first folder on the way that only its owner may pass, such as /root, an empty one is mounted that all may
    pass; it has the way to `paths`, and nothing else of what the folder has. Raise OSError where mounts are denied.
    """
    hidden = [(path, top) for path in paths if path.exists() and (top := _first_closed(path)) is not None]
    if not hidden:
        return
    unshare(CLONE_NEWNS)
    mount("none", "/", "", _MS_REC | _MS_PRIVATE)
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
