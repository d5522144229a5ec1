"""What all verbs print with: tables, JSON, sizes and times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "bar",
    "console",
    "facts",
    "print_json",
    "print_lines",
    "printable",
    "seconds",
    "shortened",
    "shown_value",
    "size",
    "table",
]

_PLAIN_WIDTH = 200
"""Columns where there is no terminal: nothing that a script reads is folded."""


def console(stream: IO[str] | None = None) -> Console:
    """Return a rich console on `stream` (stdout if None); a reader that went away raises BrokenPipeError."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = stream or sys.stdout
    width = None if stream.isatty() else _PLAIN_WIDTH
    return Piped(file=stream, highlight=False, markup=False, emoji=False, width=width)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout. NaN and infinities become null: JSON has no name for them."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=False)
    print(text.encode("utf-8", "backslashreplace").decode())  # half a character, as of a file name: JSON's own escape


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def table(title: str, *columns: str, numbers: Iterable[str] = ()) -> Table:
    """Return an empty table; the columns in `numbers` are aligned to the right. Cells are text, never markup."""
    from rich import box
    from rich.table import Table

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in set(numbers) else "left", overflow="fold")
    return made


def print_lines(rows: Sequence[Mapping[str, str]], *, texts: Sequence[str], name: int = 24) -> None:
    """Print rows by column, a line each, with as many columns from the left as the terminal has room for.

    The first column is cut in its middle where it is longer than what the others leave, which is `name` letters at
    least. Columns outside `texts` are numbers.
    """
    if not rows:
        return
    first, *others = rows[0]
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in rows[0]}
    room, shown = console().width - min(name, widths[first]), []
    for column in others:
        room -= widths[column] + 2
        if room < 0:
            room += widths[column] + 2
            break
        shown.append(column)
    widths[first] = min(widths[first], room + min(name, widths[first]))
    for row in ({column: column for column in rows[0]}, *rows):
        cells = [f"{shortened(row[first], widths[first]):<{widths[first]}}"]
        cells += [f"{row[one]:{'<' if one in texts else '>'}{widths[one]}}" for one in shown]
        print("  ".join(cells).rstrip())


def shortened(text: str, width: int) -> str:
    """Return its beginning and its end, which tell `fused_conv2d_add3` from others."""
    return text if len(text) <= width else f"{text[: (width - 1) // 2]}…{text[len(text) - width // 2 :]}"


def bar(share: float, width: int) -> str:
    """Return a bar that takes this share of `width` letters, in eighths of one."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values, a line each, on stdout."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def printable(text: str) -> str:
    """Return a text that a terminal does not take for an order: names and paths are their senders'."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def shown_value(value: object) -> str:
    """Return a JSON value for a person: a list as words, `-` for null."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)


def size(size_bytes: float) -> str:
    """Return a number of bytes for a person: `13.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"


def seconds(duration_s: float) -> str:
    """Return a duration for a person: `1.24 s`, `3.1 ms`, `12 µs`."""
    if duration_s >= 1:
        return f"{duration_s:.2f} s"
    if duration_s >= 1e-3:
        return f"{duration_s * 1e3:.3g} ms"
    return f"{duration_s * 1e6:.3g} µs"
