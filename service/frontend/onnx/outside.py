"""An ONNX message without its large data, which stays where it lies in the file: it is neither parsed nor copied.

protobuf copies each `raw_data` into the message, and once more into the `bytes` that Python is given: a gigabyte for
half of one. So the file is walked before, at the level of fields, and each large `raw_data` is left out. In its place
stands a mark that no file can know, with the number of the place where the data lies.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["LEAST_BYTES", "Outside", "without_data"]

LEAST_BYTES = 1024
"""Data of more than that is left out; no message of less is looked into."""

_MOST_FIELDS = 1 << 20
_DEPTH = 64
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_RAW_DATA = 9

# Field number -> kind of message (onnx/onnx.proto3): those in which `file.tensors` finds tensors, no others.
_MESSAGES = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
    "tensor": {},
}


class _Odd(Exception):
    """Something that protobuf is to judge."""


@dataclass(frozen=True)
class Outside:
    """The data that a message was parsed without: what stands for it in `raw_data`, and where in `content` it lies."""

    content: memoryview
    mark: bytes = b""
    spans: Sequence[slice] = ()

    def data(self, tensor: Any) -> memoryview | None:
        """Return the data of `tensor`; None where the message has it."""
        place = self._place(tensor)
        return None if place is None else self.content[place]

    def _place(self, tensor: Any) -> slice | None:
        if not self.spans or not tensor.HasField("raw_data"):
            return None
        given: bytes = tensor.raw_data
        if len(given) != len(self.mark) + 8 or not given.startswith(self.mark):
            return None
        return self.spans[int.from_bytes(given[-8:], "little")]

    def name_file(self, tensor: Any, name: str) -> None:
        """Make the data of `tensor` external data in the file `name`, which is the message's own."""
        if tensor.data_location != 1 and (at := self._place(tensor)) is not None:
            tensor.ClearField("raw_data")
            tensor.data_location = 1
            del tensor.external_data[:]
            place = {"location": name, "offset": str(at.start), "length": str(at.stop - at.start)}
            for key, text in place.items():
                tensor.external_data.add(key=key, value=text)

    def put_back(self, tensor: Any) -> None:
        """Put the data of `tensor` into the message."""
        if (data := self.data(tensor)) is not None:
            tensor.raw_data = bytes(data)


def without_data(content: memoryview) -> tuple[bytes | memoryview, Outside]:
    """Return a ModelProto's bytes without large data, and where that lies; all of `content` if it is no such message.

    What is odd about it is left to protobuf.
    """
    walk = _Walk(content)
    try:
        message = b"".join(walk.message("model", 0, len(content), 0))
    except _Odd:
        return content, Outside(content)
    return message, Outside(content, walk.mark, walk.spans)


class _Walk:
    def __init__(self, content: memoryview) -> None:
        self.content, self.mark = content, secrets.token_bytes(16)
        self.spans: list[slice] = []
        self._fields = 0

    def message(self, kind: str, at: int, end: int, depth: int) -> Iterator[bytes | memoryview]:
        """Yield the message from `at` to `end` in pieces, without large data."""
        inner, copied = _MESSAGES[kind], at
        while at < end:
            tag, value = self._varint(at, end)
            wire = tag & 7
            if wire != _DELIMITED:
                at = self._behind(wire, value, end)
                continue
            size, start = self._varint(value, end)
            if size > end - start:
                raise _Odd
            if size > LEAST_BYTES:
                found = self._large(kind, inner.get(tag >> 3), tag >> 3, slice(start, start + size), depth)
                if found is not None:
                    yield self.content[copied:value]
                    yield from (_encoded(len(found)), found)
                    copied = start + size
            at = start + size
        yield self.content[copied:end]

    def _large(self, kind: str, inner: str | None, field: int, span: slice, depth: int) -> bytes | None:
        """What stands for a long field; None for itself."""
        if kind == "tensor" and field == _RAW_DATA:
            self.spans.append(span)
            return self.mark + (len(self.spans) - 1).to_bytes(8, "little")
        if inner is None or depth >= _DEPTH:
            return None
        return b"".join(self.message(inner, span.start, span.stop, depth + 1))

    def _behind(self, wire: int, at: int, end: int) -> int:
        if wire == _VARINT:
            return self._varint(at, end)[1]
        if wire not in (_FIXED64, _FIXED32):
            raise _Odd
        at += 8 if wire == _FIXED64 else 4
        if at > end:
            raise _Odd
        return at

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """The number at `at`, and what comes behind it."""
        self._fields += 1
        if self._fields > _MOST_FIELDS:
            raise _Odd
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise _Odd
            byte = self.content[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise _Odd


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
