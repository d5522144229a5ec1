"""A multipart body, streamed to disk and hashed as it comes; nothing of it is held in memory.

The limits hold while it streams: the first byte over one ends the upload.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from relaxc.service.api.disk import on_disk
from relaxc.service.errors import InvalidOption, ModelTooLarge, ModelUnsafe

__all__ = ["OVERHEAD_BYTES", "FormReader", "Upload", "pump", "receive"]

OVERHEAD_BYTES = 1 << 20
"""What a body may have besides the model: boundaries, headers, options."""

_BATCH_BYTES = 1 << 20
_FIELD_BYTES = 64 << 10
_MAX_PARTS = 1024
FIELDS = ("options", "target")
"""The parts with text that a compile takes."""

_PLAIN_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")
_REMEDY = "Send it as curl does: curl -F model=@model.onnx http://HOST/v1/compile"


@dataclass(slots=True)
class Upload:
    """What came: the model's file in `folder`, external data beside it, the SHA-256 of each, and the fields' texts."""

    folder: Path
    model: Path | None = None
    sha256s: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0
    fields: dict[str, str] = field(default_factory=dict)


async def receive(
    chunks: AsyncIterator[bytes],
    content_type: str,
    folder: Path,
    max_bytes: int,
    fields: Collection[str] = FIELDS,
    admit: Callable[[int], None] = lambda more_bytes: None,
) -> Upload:
    """Read a whole body into `folder`; beside files it may have the parts `fields`. `admit` is asked before each write.

    Raise InvalidOption for a body that is not what a form should be, ModelTooLarge as soon as the files have over
    `max_bytes` or the rest OVERHEAD_BYTES, ModelUnsafe for a file name that is a path.
    """
    reader = FormReader(content_type, folder, max_bytes, fields)

    def take(data: bytes) -> None:
        admit(len(data))
        reader.feed(data)

    try:
        await pump(chunks, take)
        return reader.finish()
    finally:
        reader.close()


async def pump(chunks: AsyncIterator[bytes], take: Callable[[bytes], object]) -> None:
    """Hand everything to `take` in a thread, a mebibyte at a time; while it works on one, the next comes in."""
    batch = bytearray()
    working = asyncio.create_task(on_disk(take, b""))
    try:
        async for chunk in chunks:
            batch += chunk
            if len(batch) >= _BATCH_BYTES:
                await working
                working = asyncio.create_task(on_disk(take, bytes(batch)))
                batch.clear()
        await working
        await on_disk(take, bytes(batch))
    finally:
        await asyncio.gather(working, return_exceptions=True)


class FormReader:
    """A push parser: `feed` it the body, then `finish`."""

    def __init__(self, content_type: str, folder: Path, max_bytes: int, fields: Collection[str] = FIELDS) -> None:
        kind, parameters = parse_options_header(content_type)
        boundary = parameters.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            raise InvalidOption("the body must be multipart/form-data with a boundary", remedy=_REMEDY)
        self.upload = Upload(folder)
        self._max_bytes = max_bytes
        self._fields = tuple(fields)
        self._parts = self._fed_bytes = 0
        self._complete = False
        self._header: dict[bytes, bytes] = {}
        self._header_name = self._header_value = b""
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None
        self._field: str | None = None
        self._text = bytearray()
        try:
            self._parser = MultipartParser(boundary, self._callbacks())  # type: ignore[arg-type]  # it takes these names
        except FormParserError as error:
            raise InvalidOption(f"the body's boundary cannot be used: {error}", remedy=_REMEDY) from error

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body; what is no file's content counts too, also after the last boundary."""
        self._fed_bytes += len(data)
        if self._fed_bytes > self._max_bytes + OVERHEAD_BYTES:
            raise self._too_large()
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidOption(f"the body is not a well-formed multipart form: {error}", remedy=_REMEDY) from error

    def finish(self) -> Upload:
        """Return what came, when the body was whole."""
        if not self._complete:
            raise InvalidOption("the body ends before its last boundary", remedy=_REMEDY)
        if self.upload.model is None:
            raise InvalidOption("the form has no part named model", remedy=_REMEDY)
        return self.upload

    def close(self) -> None:
        """Close a file that was being written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": self._on_header_name,
            "on_header_value": self._on_header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _part_begin(self) -> None:
        self._header = {}
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise InvalidOption(f"the form has over {_MAX_PARTS} parts")

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_end(self) -> None:
        self._header[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _headers_finished(self) -> None:
        _, parameters = parse_options_header(self._header.get(b"content-disposition", b""))
        name, filename = _text(parameters.get(b"name", b"")), _text(parameters.get(b"filename", b""))
        if name == "model":
            if self.upload.model is not None:
                raise InvalidOption("the form has two parts named model", remedy=_REMEDY)
            self.upload.model = self._create(_model_name(filename))
        elif name == "data":
            self._create(_data_name(filename))
        elif name in self._fields:
            if name in self.upload.fields:
                raise InvalidOption(f"the form has two parts named {name}")
            self._field = name
        else:
            there = ", ".join(("model", "data", *self._fields))
            raise InvalidOption(f"the form has a part named {name[:80]!r}; there are {there}")

    def _create(self, name: str) -> Path:
        path = self.upload.folder / name
        self._hash = hashlib.sha256()
        try:
            self._file = path.open("xb")
        except FileExistsError as error:
            raise InvalidOption(f"two parts have the file name {name!r}") from error
        except OSError as error:
            raise InvalidOption(f"a part's file name cannot be used: {error.strerror}") from error
        return path

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._file is None:
            self._text += data[start:end]
            if len(self._text) > _FIELD_BYTES:
                raise InvalidOption(f"the part {self._field} has over {_FIELD_BYTES} bytes")
            return
        content = memoryview(data)[start:end]
        self.upload.size_bytes += len(content)
        if self.upload.size_bytes > self._max_bytes:
            raise self._too_large()
        self._hash.update(content)
        self._file.write(content)

    def _too_large(self) -> ModelTooLarge:
        limit = self._max_bytes
        return ModelTooLarge(f"the upload is over RELAXC_MAX_MODEL_BYTES, {limit} bytes", limit_bytes=limit)

    def _part_end(self) -> None:
        if self._field is not None:
            try:
                self.upload.fields[self._field] = self._text.decode()
            except UnicodeDecodeError as error:
                raise InvalidOption(f"the part {self._field} is not UTF-8") from error
        if self._file is not None:
            self.upload.sha256s[Path(self._file.name).name] = self._hash.hexdigest()
        self.close()
        self._field = None
        self._text = bytearray()

    def _end(self) -> None:
        self._complete = True


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _model_name(filename: str) -> str:
    """The last part of the sender's name for the model, which is only used to speak of it."""
    name = re.split(r"[/\\]", filename)[-1]
    return name if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}", name) else "model"


def _data_name(filename: str) -> str:
    """The name by which the model asks for its external data: a plain one, in the model's own folder."""
    if not _PLAIN_NAME.fullmatch(filename) or filename in (".", ".."):
        raise ModelUnsafe(
            f"the file name of a data part must be a plain name, got {filename[:80]!r}",
            remedy="Save the model's external data in its own folder, and send each file under its plain name.",
        )
    return filename
