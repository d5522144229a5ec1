"""A worker that starts before this process has imported what reads its settings, and is sent them when it is wanted.

Imports nothing but the standard library and its like: it is what the command line begins with.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from relaxc.service.process.scrubbed import bare_environment
from relaxc.service.process.zygote import Zygote

__all__ = ["SETTINGS_FOLLOW", "EarlyWorker", "start_early", "take_early"]

SETTINGS_FOLLOW = "--settings-follow"
"""The option of a worker whose first message are its settings."""

_NOT_HERE = ("--help", "-h", "--server")


@dataclass(frozen=True, slots=True)
class EarlyWorker:
    """A zygote that waits for its settings; `log` gets what it prints."""

    flavour: str
    zygote: Zygote
    log: IO[bytes]


_waiting: list[EarlyWorker] = []


def start_early(arguments: Sequence[str]) -> None:
    """Start a worker where `relaxc ARGUMENTS…` is a compile on this machine.

    It ends with this process, or is taken by who wants one of its flavour. What is wrong with the arguments is left to
    who parses them.
    """
    elsewhere = bool(os.environ.get("RELAXC_SERVER")) or any(word.startswith(_NOT_HERE) for word in arguments)
    if not arguments or arguments[0] != "compile" or elsewhere:
        return
    flavour = "pt2" if any(word.endswith(".pt2") for word in arguments) else "onnx"
    log = os.fdopen(os.memfd_create("log", os.MFD_CLOEXEC), "w+b", buffering=0)
    options = ["--flavour", flavour, SETTINGS_FOLLOW]
    _waiting.append(
        EarlyWorker(flavour, Zygote("relaxc.service.process.worker", options, bare_environment(), log), log)
    )


def take_early(flavour: str) -> EarlyWorker | None:
    """Return the worker of this flavour that was started early, once; None where there is none."""
    found = next((worker for worker in _waiting if worker.flavour == flavour), None)
    if found is not None:
        _waiting.remove(found)
    return found
