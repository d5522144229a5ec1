"""What a task has told its server so far: of a child's words only those that it may say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relaxc.service.process.guard import Ending
from relaxc.service.process.task import ASK, Emit, finite

__all__ = ["EVENTS", "Heard"]


EVENTS = frozenset({"stage", "progress", "log", "metric", "trial"})
"""What a child tells of itself; `state` and `done`, by which a listener knows the end, are the server's to say."""


@dataclass
class Heard:
    """The guard's words, the first and the last, and those of the child between them, which may be hostile.

    `asked` hears what the child asks for, where there is somebody to answer it.
    """

    pid: int | None = None
    stage: str | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    ending: Ending | None = None
    broke_off: str = ""
    asked: Callable[[dict[str, Any]], None] | None = None

    def take(self, message: dict[str, Any], on_event: Emit) -> None:
        """Sort one message; what is for the caller goes to `on_event`."""
        try:
            message = finite(message)
        except RecursionError:  # as with what is too deep for the parser
            return
        kind = message.pop("event", None)
        if self.pid is None:  # the first line, which is the guard's
            self.pid = int(message["pid"])
        elif kind == "ended":
            self.ending = Ending(**message)
        elif kind == "result":
            self.result = message
        elif kind == "error":
            self.error = message.get("error")
        elif kind == ASK:
            if self.asked is not None:
                self.asked(message)
        elif isinstance(kind, str) and kind in EVENTS:
            if kind == "stage" and message.get("state") == "start":
                self.stage = str(message.get("stage"))
            on_event({"event": kind, **message})
