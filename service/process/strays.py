"""An end for what a guard that was killed leaves behind."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

__all__ = ["end_strays"]

_LIMIT_S = 5.0
_PAUSE_S = 0.002


def end_strays(guards: set[int]) -> None:
    """Kill every child that is no guard, until there is none: those of the killed become ours in turn.

    They are not reaped before, so that no process id that is signalled can be somebody else's.
    """
    me, deadline = psutil.Process(), time.monotonic() + _LIMIT_S
    while strays := [child for child in me.children() if child.pid not in guards]:
        for stray in strays:
            with contextlib.suppress(psutil.NoSuchProcess):
                stray.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stray.pid, os.WNOHANG)
        if time.monotonic() > deadline:
            return
        time.sleep(_PAUSE_S)
