"""What runs tasks, as those see it who have tasks: children of this process, or of nodes elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from relaxc.service.process.pool import Cancellation
from relaxc.service.process.task import Emit, Flavour, Task

__all__ = ["Runner", "RunnerLost"]


class Runner(Protocol):
    """`relaxc.service.process.pool.Pool`, or what does the same on other machines. Any thread may call it."""

    groups: Path | None

    @property
    def running(self) -> int:
        """How many tasks run."""
        ...

    def warm(self, *flavours: Flavour) -> None:
        """Have ready what tasks of these flavours need, without waiting for it."""
        ...

    def ready(self) -> dict[Flavour, dict[str, Any]]:
        """Return the flavours whose tasks could begin now, and their sandbox (`Sandbox.to_dict()`)."""
        ...

    def run(self, task: Task, on_event: Emit, *, cancellation: Cancellation | None = None) -> dict[str, Any]:
        """Run the task, as `Pool.run`. Raise what that raises, and RunnerLost."""
        ...

    def close(self) -> None:
        """End all tasks; no process is left."""
        ...


class RunnerLost(Exception):
    """The machine that ran a task has gone, and nothing is known of the task: as when a server dies with its jobs."""
