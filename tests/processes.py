"""Processes that tests look at, any of which may end between two looks."""

from __future__ import annotations

import psutil

__all__ = ["command_of", "name_of"]


def name_of(process: psutil.Process) -> str:
    """The name of a process; empty once it has ended."""
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def command_of(process: psutil.Process) -> list[str]:
    """The words of a process's command; none once it has ended."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []
