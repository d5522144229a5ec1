"""A model to the server: known by digest, in parts that go on after a lost connection, external data beside it."""

from __future__ import annotations

import mmap
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from relaxc.service.artifact.entry import sha256_of
from relaxc.service.client.flow import Call, Emit, Sleep, Steps, Work
from relaxc.service.client.job import Event, Model
from relaxc.service.errors import ModelNotFound, ModelUnsafe, ServerUnreachable, UploadConflict

__all__ = ["CHUNK_BYTES", "IDENTIFY_S", "external_data", "upload"]

CHUNK_BYTES = 8 << 20
"""Bytes of one PUT: what is sent again when it is lost, and what both sides hold in memory."""

IDENTIFY_S = 180.0
"""How long the answer to a model's last byte may take: the server reads it in a process that it gives two minutes."""

_NAME_CHARS = 200
_PAUSE_S = 0.25
_CONFLICTS = 16
"""How often the server may have another offset than we think, one after the other."""

# onnx.StringStringEntryProto as TensorProto.external_data has it: key (field 1) "location", value (field 2).
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f]|[\x80-\xff][\x01-\x7f])")


def external_data(model: Path) -> list[Path]:
    """Return the files beside the model that it may keep its tensors in, found without reading it as ONNX.

    Only what is there as a plain file in the model's own folder; the server says what is missing.
    """
    found: dict[str, Path] = {}
    with model.open("rb") as file:
        if file.read(4) == b"PK\x03\x04" or model.stat().st_size == 0:  # a .pt2 holds all of it
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for match in _LOCATION.finditer(content):
                size = match[1][0] & 0x7F | (match[1][1] << 7 if len(match[1]) > 1 else 0)
                name = content[match.end() : match.end() + size].decode(errors="replace")
                if name == Path(name).name and (model.parent / name).is_file():
                    found[name] = model.parent / name
    return list(found.values())


def upload(model: Path, data: Iterable[Path] | None = None) -> Steps[Model]:
    """Send what the server does not have; emit `stage` and `progress` events named `upload` for a large file.

    `data` are the files of external data, None for what `external_data` finds. Raise ModelNotFound where there is no
    file, and what the server says of the model.
    """
    if not model.is_file():
        raise ModelNotFound(f"there is no file {model}", path=str(model))
    beside = list(data) if data is not None else (yield Work(lambda: external_data(model)))
    if beside:
        return (yield from _as_form(model, beside))
    sha256: str = yield Work(lambda: sha256_of(model))
    try:
        known = Model.from_dict((yield Call("GET", f"/v1/models/{sha256}")).json())
    except ModelNotFound:
        return (yield from _in_parts(model, sha256))
    # By an alias of before, another answers: what is this very file has its digest.
    return known if known.digest == sha256 else (yield from _in_parts(model, sha256))


def _as_form(model: Path, beside: list[Path]) -> Steps[Model]:
    for path in beside:
        if not path.is_file():
            raise ModelUnsafe(f"the external data {path} is no file", path=str(path))
    files = (("model", model), *(("data", path) for path in beside))
    answer = yield Call("POST", "/v1/models", files=files, timeout_s=IDENTIFY_S)
    return Model.from_dict(answer.json())


def _in_parts(model: Path, sha256: str) -> Steps[Model]:
    total, conflicts = model.stat().st_size, 0
    offset: int = yield from _offset(sha256)
    telling, started_s = total > CHUNK_BYTES, time.monotonic()
    if telling:
        yield _told("stage", stage="upload", state="start")
    while True:
        content: bytes = yield Work(lambda start=offset: _part(model, start))  # type: ignore[misc]
        try:
            answer = yield _put(model.name, sha256, content, offset, total)
        except UploadConflict as error:  # a part that was lost on its way back, or somebody else sends the same
            conflicts += 1
            if conflicts > _CONFLICTS or not isinstance(error.fields.get("offset"), int):
                raise
            offset = error.fields["offset"]
            yield Sleep(_PAUSE_S * (conflicts - 1))
            continue
        offset, conflicts = offset + len(content), 0
        if telling:
            yield _told("progress", stage="upload", done=offset, total=total)
        if answer.status_code != 202:
            break
    if telling:
        yield _told("stage", stage="upload", state="done", seconds=time.monotonic() - started_s)
    return Model.from_dict(answer.json())


def _offset(sha256: str) -> Steps[int]:
    """How much the server has; 0 where it refuses to say: a HEAD has no body for the reason, the PUT after it has."""
    try:
        answer = yield Call("HEAD", f"/v1/uploads/{sha256}")
    except ServerUnreachable as error:
        if "status" in error.fields:
            return 0
        raise
    return int(answer.headers.get("upload-offset", 0))


def _put(name: str, sha256: str, content: bytes, offset: int, total: int) -> Call:
    headers = {"Content-Type": "application/octet-stream"}
    if 0 < len(content) < total:  # without it: the whole, or nothing more of an upload that only has to be finished
        headers["Content-Range"] = f"bytes {offset}-{offset + len(content) - 1}/{total}"
    name = name[:_NAME_CHARS] if name.isprintable() else "model"
    path = f"/v1/uploads/{sha256}"
    return Call("PUT", path, params={"name": name}, headers=headers, content=content, timeout_s=IDENTIFY_S)


def _part(model: Path, offset: int) -> bytes:
    with model.open("rb") as file:
        file.seek(offset)
        return file.read(CHUNK_BYTES)


def _told(kind: str, **data: Any) -> Emit:
    return Emit(Event(0, kind, {"event": kind, **data}))
