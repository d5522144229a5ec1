"""What a child process is asked to do, how it tells what it does, and how it ended."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaxc.service.process.limits import Limits
from relaxc.service.process.sandbox.confinement import Confinement
from relaxc.service.request import ModelFormat

__all__ = ["ASK", "MAX_LINE_BYTES", "Emit", "Flavour", "Lines", "Task", "finite", "send"]

Emit = Callable[[dict[str, Any]], None]

Flavour = ModelFormat
"""What a worker has imported: `onnx` keeps torch out, `pt2` has it."""

ASK = "ask"
"""The event of a child that wants something done elsewhere; the answer comes back over the same channel."""

MAX_LINE_BYTES = 4 << 20
"""The longest that means something are the kernels of a model and how its records cover them: 300 bytes each."""


@dataclass(frozen=True, slots=True)
class Task:
    """A call `entry(payload, workdir, emit)` in a child process; `entry` is `module:function`, payload JSON.

    `repro` is a command line that does the same by hand, for the message of a crash. What the entry reads or writes
    outside `workdir` has to be in `confinement`. One that `tunes` takes times of kernels: elsewhere it has its
    machine to itself, and others build for it.
    """

    entry: str
    payload: dict[str, Any]
    workdir: Path
    flavour: Flavour = Flavour.ONNX
    limits: Limits = field(default_factory=Limits.of_settings)
    repro: str = ""
    confinement: Confinement = field(default_factory=Confinement)
    tunes: bool = False

    @property
    def log_path(self) -> Path:
        """Where the child's stdout and stderr go."""
        return self.workdir / "log.txt"

    def to_dict(self) -> dict[str, Any]:
        """Return what the worker needs of the task, as JSON values."""
        return {
            "entry": self.entry,
            "payload": self.payload,
            "workdir": str(self.workdir),
            "limits": self.limits.to_dict(),
            "confinement": self.confinement.to_dict(),
        }


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Write one JSON object as one line; NaN and infinities, which JSON does not have, become text."""
    try:
        line = json.dumps(message, allow_nan=False, default=str)
    except ValueError:
        line = json.dumps(finite(message), default=str)
    channel.sendall(line.encode() + b"\n")


def finite(value: Any) -> Any:
    """Return `value` with NaN and infinities, which JSON has not, as text, and without half surrogates."""
    if isinstance(value, str):
        return _unicode(value)
    if isinstance(value, dict):
        return {_unicode(str(name)): finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _unicode(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair that has no other half."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Lines:
    """The JSON objects that come in over a socket, a line each."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pending = bytearray()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Ends with the stream. Skips what is no JSON object: a process killed while it writes leaves half a line.

        Raise ValueError for a line over MAX_LINE_BYTES.
        """
        while (found := self.next()) is not None:
            yield from found

    def next(self) -> list[dict[str, Any]] | None:
        """Wait for more bytes, and return the objects that are whole with them; None at the end of the stream."""
        chunk = self._chunk()
        if not chunk:
            return None
        *lines, rest = chunk.split(b"\n")
        found = []
        for line in lines:
            message = _parsed(bytes(self._pending) + line)
            self._pending.clear()
            if message is not None:
                found.append(message)
        self._pending += rest
        if len(self._pending) > MAX_LINE_BYTES:
            raise ValueError(f"a line of over {MAX_LINE_BYTES} bytes")
        return found

    def _chunk(self) -> bytes:
        try:
            return self._channel.recv(1 << 16)
        except ConnectionError:
            return b""


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
