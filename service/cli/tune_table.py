"""What a tuning run shows on stderr while it goes: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from relaxc.service.cli.output import console, seconds, table
from relaxc.service.cli.progress import StageProgress

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["TuneProgress", "duration", "part", "ratio"]

_NUMBERS = ("task", "trials", "untuned", "best", "GFLOP/s", "% of roofline", "gain")
_PER_SECOND = 4
_MOST_ROWS = 30
"""Rows of the live table; a terminal cannot scroll what is alive. Those that changed last are shown."""


class TuneProgress:
    """Takes a run's events (docs/tuning.md) as a callable, inside `with`."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self._stages = StageProgress(self._stream)
        self._live: Any = None
        self._rows: dict[int, dict[str, Any]] = {}
        self._changed: dict[int, int] = {}
        self._done = self._total = 0
        self._eta: float | None = None
        self._loud = False

    def __enter__(self) -> Self:
        self._stages.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._stages.__exit__(kind, error, trace)

    def __call__(self, event: dict[str, Any]) -> None:
        """Shows one event."""
        kind = event.get("event")
        if kind == "metric":
            self._take(event)
        elif kind == "progress" and event.get("stage") == "tune":
            self._done, self._total = event["done"], event["total"]
        elif kind == "stage" and event["stage"] == "tune" and event["state"] == "start" and self._stages.alive:
            self._go_live()
        elif self._live is None:
            self._stages(event)

    def _go_live(self) -> None:
        from rich.live import Live

        self._stages.__exit__(None, None, None)
        self._live = Live(
            console=console(self._stream), refresh_per_second=_PER_SECOND, get_renderable=self._table, transient=True
        )
        self._live.start()

    def _take(self, event: dict[str, Any]) -> None:
        index = event["task"]
        before = self._rows.get(index)
        self._rows[index] = event
        self._changed[index] = time.monotonic_ns()
        self._eta, self._loud = event.get("eta_s"), bool(event.get("loud"))
        changed = before is None or any(before.get(name) != event.get(name) for name in ("best_s", "done"))
        if self._live is None and changed:
            print(self._line(event), file=self._stream, flush=True)

    def _line(self, event: dict[str, Any]) -> str:
        cells = dict(zip(("name", *_NUMBERS[1:], "state"), _cells(event)[1:], strict=True))
        says = [f"[{self._done}/{self._total}] task {event['task']} {cells['name']}: {cells['trials']} trials"]
        says += [f"best {cells['best']}"] if cells["best"] else []
        says += [f"{cells['GFLOP/s']} GFLOP/s"] if cells["GFLOP/s"] else []
        says += [f"{cells['% of roofline']} of the roofline"] if cells["% of roofline"] else []
        says += [f"gain {cells['gain']}"] if cells["gain"] else []
        return ", ".join([*says, *([event["done"]] if event.get("done") else [])])

    def _table(self) -> Table:
        left = "" if self._eta is None else f", at most {duration(self._eta)} left"
        noise = "; the machine is noisy" if self._loud else ""
        shown = table(
            f"{self._done} of {self._total} trials{left}{noise}",
            "task",
            "name",
            *_NUMBERS[1:],
            "state",
            numbers=_NUMBERS,
        )
        latest = sorted(self._rows, key=lambda index: -self._changed[index])[:_MOST_ROWS]
        for index in sorted(latest):
            shown.add_row(*_cells(self._rows[index]))
        return shown


def _cells(event: dict[str, Any]) -> list[str]:
    best, untuned = event.get("best_s"), event.get("untuned_s")
    return [
        str(event["task"]),
        str(event["name"]),
        str(event["trials"]),
        seconds(untuned) if untuned else "",
        seconds(best) if best else "",
        f"{event['gflops']:.1f}" if event.get("gflops") else "",
        part(event.get("roofline")),
        ratio(untuned / best if best and untuned else None),
        str(event.get("done", "")),
    ]


def part(value: float | None) -> str:
    """Return a share for a person: `83 %`; empty for none."""
    return f"{value:.0%}" if value else ""


def ratio(value: float | None) -> str:
    """Return a gain for a person: `1.12 x`; empty for none."""
    return f"{value:.2f} x" if value else ""


def duration(value_s: float) -> str:
    """Return a long time for a person: `1:02:03`, `2:03`."""
    minutes, rest = divmod(round(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
