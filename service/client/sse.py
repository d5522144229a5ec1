"""Server-sent events: a parser fed with bytes (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field

_UTF_8 = codecs.getincrementaldecoder("utf-8-sig")

__all__ = ["MAX_EVENT_CHARS", "Message", "Parser"]

MAX_EVENT_CHARS = 32 << 20
"""A job's events have at most 16 MiB; more without an end is no event stream."""


@dataclass(frozen=True, slots=True)
class Message:
    """One event: its kind, its data with the lines joined, and the id last seen (empty when there was none)."""

    event: str
    data: str
    id: str


@dataclass
class Parser:
    """`feed` it what comes, in pieces of any size. `last_id` is that of the last event which was complete."""

    last_id: str = ""
    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: _UTF_8("replace"))
    _id: str = field(default="", init=False)
    _rest: str = ""
    _event: str = ""
    _data: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._id = self.last_id

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Yield the events that are complete now. Raise ValueError for one of over MAX_EVENT_CHARS."""
        text = self._rest + self._decoder.decode(chunk)
        held = text.endswith("\r")  # the other half of a line's end may be still to come
        lines = (text[:-1] if held else text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop() + ("\r" if held else "")
        for line in lines:
            message = self._line(line)
            if message is not None:
                yield message
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT_CHARS:
            raise ValueError(f"an event of over {MAX_EVENT_CHARS} characters")

    def _line(self, line: str) -> Message | None:
        if not line:
            return self._end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        return None  # a comment has no name; `retry` is ours to decide

    def _end(self) -> Message | None:
        self.last_id = self._id  # not before its event is whole: what was cut off has to come again
        event, data = self._event or "message", self._data
        self._event, self._data = "", []
        return Message(event, "\n".join(data), self.last_id) if data else None
