"""Bubblewrap as a door: where users may make no namespaces themselves, and the program `bwrap` may for them.

So it is where AppArmor lets only programs with a profile make user namespaces (Ubuntu 24.04), and bwrap has one. Behind
it is a user namespace in which this process may make the others, one of each for every job; files, processes and user
ids are what they were.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from relaxc.service.config import settings

__all__ = ["BEHIND", "go_behind"]

BEHIND = "_RELAXC_BEHIND_BUBBLEWRAP"
"""Set in the environment of a process that has gone through the door: it goes once."""

_OPTIONS = ("--unshare-user", "--cap-add", "CAP_SYS_ADMIN", "--die-with-parent", "--dev-bind", "/", "/", "--")
_LIMIT_S = 20.0


def go_behind(shared: str) -> None:
    """Start this program anew behind bwrap, as another process, where that is what gives its jobs namespaces.

    `shared` says why a job can have none here; empty where it can. Return where the door is not needed, not there or
    closed. Descriptors that are passed on stay open. There must be no threads yet.
    """
    values = settings()
    if os.environ.pop(BEHIND, "") or values.sandbox == "off" or not values.bubblewrap or os.geteuid() == 0:
        return
    program = shutil.which(values.bubblewrap)
    if program is None or not shared or not _opens(program):
        return
    command = [program, *_OPTIONS, sys.executable, *sys.orig_argv[1:]]
    os.execve(program, command, {**os.environ, BEHIND: "1"})


def _opens(program: str) -> bool:
    try:
        done = subprocess.run([program, *_OPTIONS, "true"], capture_output=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
