"""Stage lines where there is no terminal, and the live display where there is one."""

from __future__ import annotations

import io
from typing import Any

from relaxc.service.cli.progress import StageProgress

EVENTS: list[dict[str, Any]] = [
    {"event": "stage", "stage": "import", "state": "start"},
    {"event": "stage", "stage": "import", "state": "done", "seconds": 0.41},
    {"event": "log", "level": "warning", "message": "x[0] is [bold] and slow"},
    {"event": "log", "level": "info", "message": "not for everybody"},
    {"event": "stage", "stage": "schedule", "state": "start"},
    {"event": "progress", "stage": "schedule", "done": 3, "total": 28},
    {"event": "stage", "stage": "schedule", "state": "done", "seconds": 1.5},
    {"event": "from the future"},
    {"event": "result", "files": ["model.so"]},
]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with StageProgress(stream) as progress:
        for event in EVENTS:
            progress(event)
    assert stream.getvalue().splitlines() == [
        "import       0.41 s",
        "warning: x[0] is [bold] and slow",
        "schedule     1.50 s",
    ]


def test_a_live_display_on_a_terminal() -> None:
    stream = Terminal()
    with StageProgress(stream) as progress:
        for event in EVENTS:
            progress(event)
    shown = stream.getvalue()
    assert "import" in shown
    assert "schedule" in shown
    assert "warning: x[0] is [bold] and slow" in shown
    assert "not for everybody" not in shown
