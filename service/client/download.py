"""A file of the server's to this disk: gone on with after a lost connection, checked, and there whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx

from relaxc.service.artifact.compiled import check_output, named_beside
from relaxc.service.artifact.entry import sha256_of
from relaxc.service.client.flow import Call, Read, Sleep, Steps, Work
from relaxc.service.errors import ArtifactCorrupt, InvalidOption, ServerUnreachable

__all__ = ["download"]

_FRUITLESS = 6
"""Connections in a row that bring nothing; each opening has its own patience besides."""

_PAUSE_S = 0.2


def download(path: str, output: Path, sha256: str) -> Steps[Path]:
    """Write what `GET path` gives to `output`, executable if it is a library, replacing what was there at the end.

    Raise InvalidOption where it cannot be written, ArtifactCorrupt when what comes has another digest than
    `sha256`, and ServerUnreachable when the server stays away.
    """
    check_output(output)
    with _beside(output) as part:
        with part.open("r+b") as file:
            yield from _fetch(path, sha256, file)
        found: str = yield Work(lambda: sha256_of(part))
        if found != sha256:
            raise ArtifactCorrupt(
                f"what {path} gave has the digest {found}", remedy="Download it again.", expected=sha256, found=found
            )
        with _writable(output):
            part.chmod(0o755 if output.suffix == ".so" else 0o644)
            part.replace(output)
    return output


@contextmanager
def _beside(output: Path) -> Iterator[Path]:
    """A new file in the same folder, removed if it has not become `output`."""
    with _writable(output), named_beside(output) as file:
        part = Path(file.name)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _writable(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidOption(f"cannot write {output}: {error.strerror or error}", option="output") from error


def _fetch(path: str, sha256: str, file: IO[bytes]) -> Steps[None]:
    fruitless, total = 0, -1
    while file.tell() != total:
        before = file.tell()
        try:
            total = yield from _open(path, sha256, file)
            while chunk := (yield Read()):
                yield Work(lambda data=chunk: _write(file, data))  # type: ignore[misc]
        except ServerUnreachable:
            if fruitless >= _FRUITLESS:
                raise
            yield Sleep(_PAUSE_S)
        fruitless = 0 if file.tell() > before else fruitless + 1
        if file.tell() > total >= 0 or fruitless > _FRUITLESS:
            raise ServerUnreachable(f"{path} ends at byte {file.tell()} of {total}", path=path)


def _open(path: str, sha256: str, file: IO[bytes]) -> Steps[int]:
    """Opens it at the end of `file`, or begins it anew where the server does so; the size of the whole."""
    headers = {}
    if file.tell():
        headers = {"Range": f"bytes={file.tell()}-", "If-Range": f'"{sha256}"'}
    answer: httpx.Response = yield Call("GET", path, headers=headers, stream=True, resumes=True)
    part = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("content-range", ""))
    if answer.status_code == 206 and part and int(part[1]) == file.tell():
        return int(part[2])
    file.seek(0)
    file.truncate()
    return int(answer.headers.get("content-length", -1))


def _write(file: IO[bytes], data: bytes) -> None:
    with _writable(Path(file.name)):
        file.write(data)
