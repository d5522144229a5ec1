"""A folder with an artifact and all that runs it: TVM's runtime, a C and a C++ interface, an example."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from relaxc.service.artifact.blocks import check_file
from relaxc.service.artifact.entry import sha256_of
from relaxc.service.artifact.manifest import Manifest, weights_extent
from relaxc.service.errors import ArtifactCorrupt, InvalidOption
from relaxc.service.lowering.tools import linker_of
from relaxc.service.packaging.libraries import runtime_libraries
from relaxc.service.packaging.runtime import files_in, write_runtime

__all__ = ["SUMS", "Package", "make_package"]

SUMS = "SHA256SUMS"
"""The file with the digest of every other, as sha256sum(1) checks it."""

_LIBRARY = "model.so"


@dataclass(frozen=True, slots=True)
class Package:
    """A finished package: its files below `folder`, and how many bytes they have beside the weights."""

    folder: Path
    files: tuple[str, ...]
    size_bytes: int
    weights_bytes: int
    libraries: tuple[str, ...]
    archive: Path | None = None


def make_package(artifact: Path, folder: Path, *, runtime: Path | None = None, archive: bool = False) -> Package:
    """Write the artifact at `artifact` with all that runs it to `folder`, and with `archive` to FOLDER.tar as well.

    TVM's libraries are those that are installed here, or in the folder `runtime`, as files or in wheels. Equal
    artifacts, libraries and compilers give equal bytes. Raise ArtifactNotFound or ArtifactCorrupt; MachineMismatch
    where the libraries are of another version; InvalidOption where they are of another architecture or `folder` is
    there already; ToolMissing without a compiler.
    """
    manifest = Manifest.read(artifact)
    check_file(artifact, manifest)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidOption(
            f"{folder} is there already", option="output", remedy="Name a folder that is not there yet."
        )
    with runtime_libraries(artifact, manifest, runtime) as libraries, _beside(folder) as made:
        weights = _copy_artifact(artifact, manifest, made)
        write_runtime(made, libraries, manifest.requires.runtime, linker_of(manifest.target))
        _write_sums(made)
        _replace(made, folder)
    names = tuple(sorted(path.relative_to(folder).as_posix() for path in files_in(folder)))
    size = sum((folder / name).stat().st_size for name in names) - weights
    packed = _write_archive(folder) if archive else None
    return Package(folder, names, size, weights, tuple(path.name for path in libraries), packed)


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """Give a new folder beside `folder`, which is gone afterwards unless it was renamed."""
    parent = folder.absolute().parent
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=parent))
    except OSError as error:
        raise InvalidOption(f"cannot write to {parent}: {error.strerror}", option="output") from error
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _replace(made: Path, folder: Path) -> None:
    if folder.is_dir():
        folder.rmdir()
    made.rename(folder)


def _copy_artifact(artifact: Path, manifest: Manifest, made: Path) -> int:
    """The bytes of weights among what was copied."""
    shutil.copyfile(artifact, made / _LIBRARY)
    path, section = weights_extent(artifact, manifest)
    if manifest.weights.file is not None:
        if sha256_of(path) != manifest.weights.sha256:
            raise ArtifactCorrupt(f"{path} has another digest than the manifest says", path=str(path))
        shutil.copyfile(path, (made / _LIBRARY).with_suffix(path.suffix))
    return section.size_bytes


def _write_sums(made: Path) -> None:
    lines = []
    for path in files_in(made):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        lines.append(f"{digest}  {path.relative_to(made).as_posix()}\n")
    (made / SUMS).write_text("".join(lines))


def _write_archive(folder: Path) -> Path:
    """A tar without anything of this machine or moment; weights do not compress, so it is not compressed."""
    out = folder.with_name(f"{folder.name}.tar")
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in files_in(folder):
            entry = tarfile.TarInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}")
            entry.size = path.stat().st_size
            entry.mode = path.stat().st_mode & 0o755
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return out
