"""A finished artifact in the hands of who asked for it: a compile here and one on a server give the same."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from service.artifact.manifest import Manifest
from service.errors import ArtifactCorrupt, InvalidOption

__all__ = ["CompiledArtifact", "check_output"]


def check_output(output: Path, model: Iterable[Path] = ()) -> None:
    """Raise InvalidOption where an artifact at `output` would replace a device or a pipe, or a file of the `model`."""
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
        copies = tuple(output if file == self.path else output.with_suffix(file.suffix) for file in self.files)
        try:
            for file, copy in reversed(list(zip(self.files, copies, strict=True))):
                digest = self.digest if file == self.path else self.manifest.weights.sha256
                _copy(file, copy, partial(_checked_copy, sha256=digest) if self.cached else shutil.copyfile)
        except OSError as error:
            raise InvalidOption(
                f"cannot write {error.filename or output}: {error.strerror}", option="output"
            ) from error
        return replace(self, path=output, files=copies)


def _copy(file: Path, copy: Path, copied: Callable[[Path, Path], object]) -> None:
    """Put what `copied` makes of a file in the place of its copy."""
    check_output(copy)
    with tempfile.NamedTemporaryFile(dir=copy.parent, prefix=f".{copy.name}.", delete=False) as temporary:
        try:
            copied(file, Path(temporary.name))
            Path(temporary.name).chmod(0o755 if copy.suffix == ".so" else 0o644)
            Path(temporary.name).replace(copy)
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
