"""A finished artifact in the hands of who asked for it: a compile here and one on a server give the same."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from relaxc.service.artifact.manifest import Manifest
from relaxc.service.errors import ArtifactCorrupt, InvalidOption

__all__ = ["CompiledArtifact", "EarlyCopy", "check_output", "named_beside"]

_SHOWN = 40
"""Letters of an output's name in those of its temporary files: at most 160 bytes of the 255 that a name may have."""


def check_output(output: Path, model: Iterable[Path] = ()) -> None:
    """Raise InvalidOption, before the work, where an artifact cannot be written to `output`.

    A device, a pipe and files of the `model` are not replaced; else a file is made in that folder, and removed.
    """
    try:
        _check_replaced(output, model)
        with named_beside(output) as temporary:
            Path(temporary.name).unlink()
    except OSError as error:
        raise _unwritable(error, output) from error


def named_beside(output: Path) -> Any:
    """Return a new file in the folder of `output`, which stays. Its name is short, however long that of `output` is."""
    return tempfile.NamedTemporaryFile(dir=output.parent, prefix=f".{output.name[:_SHOWN]}.", delete=False)


def _check_replaced(output: Path, model: Iterable[Path] = ()) -> None:
    if output.is_dir():
        raise InvalidOption(f"cannot write {output}: it is a folder", option="output")
    if output.exists() and not output.is_file():
        raise InvalidOption(f"cannot write {output}: it is no regular file", option="output")
    if output.exists() and any(file.exists() and file.samefile(output) for file in model):
        raise InvalidOption(f"cannot write {output}: it is the model", option="output")


@dataclass(frozen=True, slots=True)
class CompiledArtifact:
    """A finished artifact. `files` has the library first, and weights too large for it, if any.

    `path` is in the store, which may remove it one day, or where the caller asked for it. `cached` means that
    no compile was needed; `build_record` then is the one of the compile that made it.
    """

    digest: str
    path: Path
    files: tuple[Path, ...]
    manifest: Manifest
    build_record: Mapping[str, Any]
    cached: bool

    def copy_to(self, output: Path) -> CompiledArtifact:
        """Return a copy at `output`, weights beside it under its name; who opens it meanwhile sees the old file or the
        new.

        Raise InvalidOption where it cannot be written, ArtifactCorrupt where a file is not the one of its digest; what
        has just been compiled was hashed when the store took it.
        """
        copies = _places(self.files, output)
        try:
            for file, copy in reversed(list(zip(self.files, copies, strict=True))):
                digest = self.digest if file == self.path else self.manifest.weights.sha256
                _copy(file, copy, partial(_checked_copy, sha256=digest) if self.cached else shutil.copyfile)
        except OSError as error:
            raise _unwritable(error, output) from error
        return replace(self, path=output, files=copies)


class EarlyCopy:
    """A copy of an artifact that is made while the store takes it, which hashes it on another core.

    A third of the time that both take one after the other; where it fails, it is as if it had not begun.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._parts: list[tuple[Path, Future[Path]]] = []
        self._dropped = False
        self._lock = threading.Lock()

    def begin(self, files: Sequence[Path]) -> None:
        """Begin to copy finished `files`, the library first; they may be renamed meanwhile. Not after `drop`."""
        with self._lock:
            if self._dropped:
                return
            thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="copy")
            with suppress(OSError):
                for file, copy in zip(files, _places(files, self._output), strict=True):
                    self._parts.append((copy, thread.submit(_copied_beside, file.open("rb"), copy)))
            thread.shutdown(wait=False)

    def finish(self, made: CompiledArtifact) -> CompiledArtifact:
        """Return the copy of the artifact that was `made`, as `copy_to` does. Raise what that raises."""
        copies = tuple(copy for copy, _ in self._parts)
        if copies != _places(made.files, self._output) or any(part.exception() for _, part in self._parts):
            return made.copy_to(self._output)
        try:
            for copy, part in reversed(self._parts):
                _put(part.result(), copy)
        except OSError as error:
            raise _unwritable(error, self._output) from error
        return replace(made, path=self._output, files=copies)

    def drop(self) -> None:
        """Remove what was copied and got no place; `finish` leaves nothing to remove."""
        with self._lock:
            self._dropped, parts, self._parts = True, self._parts, []
        for _, part in parts:
            if part.exception() is None:
                part.result().unlink(missing_ok=True)


def _copied_beside(source: BinaryIO, copy: Path) -> Path:
    """Return a copy of an open file, beside where it is to be."""
    with source, named_beside(copy) as temporary:
        try:
            shutil.copyfile(f"/proc/self/fd/{source.fileno()}", temporary.name)
        except BaseException:
            Path(temporary.name).unlink()
            raise
        return Path(temporary.name)


def _places(files: Sequence[Path], output: Path) -> tuple[Path, ...]:
    """Where copies of an artifact's files, the library first, are to be: weights beside it under its name."""
    return tuple(output if file == files[0] else output.with_suffix(file.suffix) for file in files)


def _unwritable(error: OSError, output: Path) -> InvalidOption:
    """What could not be written: `output`, of whose temporary files nobody knows; or what could not be read."""
    elsewhere = Path(error.filename or output).absolute().parent != output.absolute().parent
    name = error.filename if elsewhere and not error.filename2 else output
    return InvalidOption(f"cannot write {name}: {error.strerror}", option="output")


def _put(made: Path, copy: Path) -> None:
    """Give what was written its place and its mode."""
    _check_replaced(copy)
    made.chmod(0o755 if copy.suffix == ".so" else 0o644)
    made.replace(copy)


def _copy(file: Path, copy: Path, copied: Callable[[Path, Path], object]) -> None:
    """Put what `copied` makes of a file in the place of its copy."""
    _check_replaced(copy)
    with named_beside(copy) as temporary:
        try:
            copied(file, Path(temporary.name))
            _put(Path(temporary.name), copy)
        except BaseException:
            Path(temporary.name).unlink()
            raise


def _checked_copy(source: Path, target: Path, *, sha256: str | None) -> None:
    """Copy in the kernel, where it can, what has this digest, which another core finds meanwhile."""

    def digest() -> str:
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor(max_workers=1) as beside:
        read = beside.submit(digest)
        shutil.copyfile(source, target)
        found = read.result()
    if found != sha256:
        raise ArtifactCorrupt(f"{source} is damaged: its digest is {found}", expected=sha256, found=found)
