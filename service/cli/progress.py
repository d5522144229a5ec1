"""Shows the events of a compile on stderr: a line a stage, alive on a terminal, plain elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import IO, Any, Self

__all__ = ["StageProgress"]

_BAR = 24


class StageProgress:
    """Takes a compile's events (docs/stages.md) as a callable, inside `with`; anything not known is passed over.

    On a terminal the running stage has a spinner, its count where it has one, and its time. Elsewhere one
    line is written as a stage ends. Warnings are shown in both.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stderr
        self.alive = self.stream.isatty()
        self.display: Any = None
        self.task: Any = None
        self.started = time.perf_counter()

    def __enter__(self) -> Self:
        if self.alive:
            self.display = _display(self.stream)
            self.display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.display is not None:
            self.display.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == "stage":
            self._stage(event["stage"], event["state"], event.get("seconds", 0.0))
        elif kind == "progress" and self.task is not None:
            self.display.update(self.task, completed=event["done"], total=event["total"])
        elif kind == "waits" and event["missing"]:
            self._line(f"it waits for a worker with {', '.join(event['missing'])}")
        elif kind == "log" and event.get("level") in ("warning", "error"):
            self._line(f"{event['level']}: {event['message']}")

    def _stage(self, name: str, state: str, took_s: float) -> None:
        if self.display is None:
            if state == "done":
                self._line(f"{name:<10} {took_s:6.2f} s")
        elif state == "start":
            self.task = self.display.add_task(name, total=None)
        elif self.task is not None:
            self.display.update(self.task, total=1, completed=1)
            self.task = None

    def _line(self, text: str) -> None:
        if self.display is not None:
            self.display.console.print(text)
        else:
            print(text, file=self.stream, flush=True)


def _display(stream: IO[str]) -> Any:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from relaxc.service.cli.output import console

    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description:<10}"),
        BarColumn(_BAR),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console(stream))
