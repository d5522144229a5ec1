"""TVM's runtime libraries for a package: those installed here, or in a folder, as files or in wheels."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from relaxc.service import tvm_libraries
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.errors import InvalidOption, MachineMismatch
from relaxc.service.packaging.needed import machine_of, needed_libraries

__all__ = ["runtime_libraries"]


@contextmanager
def runtime_libraries(artifact: Path, manifest: Manifest, runtime: Path | None) -> Iterator[list[Path]]:
    """Give the libraries that the artifact needs, of its version and architecture, while the block runs.

    They are the installed ones, or in the folder `runtime`, as files or in wheels. Raise MachineMismatch where they are
    of another version, InvalidOption where one is missing or for another architecture.
    """
    names = needed_libraries(artifact, manifest)
    if runtime is None:
        yield _fitting(artifact, _installed(manifest, names))
    elif not any(runtime.glob("*.whl")):
        yield _fitting(artifact, [runtime / name for name in names])
    else:
        with TemporaryDirectory(prefix="relaxc-libraries-") as folder:
            yield _fitting(artifact, _unpacked(runtime, names, manifest.requires.runtime, Path(folder)))


def _installed(manifest: Manifest, names: list[str]) -> list[Path]:
    here = tvm_libraries.runtime_version()
    if manifest.requires.runtime != here:
        raise MachineMismatch(
            f"the artifact needs the runtime of TVM {manifest.requires.runtime}; {here} is installed",
            remedy="Install that version, or name a folder that has its libraries with --runtime.",
        )
    ffi, others = tvm_libraries.ffi_folder() / "lib", tvm_libraries.runtime_folder()
    return [(ffi if name == tvm_libraries.FFI else others) / name for name in names]


def _unpacked(wheels: Path, names: list[str], version: str, folder: Path) -> list[Path]:
    """The libraries of these names, out of the wheels into `folder`."""
    if not any(wheels.glob(f"apache_tvm-{version}-*.whl")):
        raise MachineMismatch(
            f"the artifact needs the runtime of TVM {version}, of which {wheels} has no wheel",
            remedy=f"pip download --no-deps --platform PLATFORM --dest {wheels} apache-tvm=={version} puts it there.",
        )
    for wheel in (*wheels.glob(f"apache_tvm-{version}-*.whl"), *sorted(wheels.glob("apache_tvm_ffi-*.whl"))):
        try:
            with zipfile.ZipFile(wheel) as packed:
                for name in packed.namelist():
                    if (short := PurePosixPath(name).name) in names:
                        with packed.open(name) as source, (folder / short).open("wb") as out:
                            shutil.copyfileobj(source, out)
        except (zipfile.BadZipFile, OSError) as error:
            raise InvalidOption(f"{wheel} cannot be read: {error}", option="runtime") from error
    return [folder / name for name in names]


def _fitting(artifact: Path, libraries: list[Path]) -> list[Path]:
    """The libraries, which are there and for the artifact's architecture."""
    for path in libraries:
        if not path.is_file():
            raise InvalidOption(f"there is no {path}, which the artifact needs", option="runtime")
        if machine_of(path) != machine_of(artifact):
            raise InvalidOption(
                f"{path} is for {machine_of(path)}, the artifact is for {machine_of(artifact)}",
                option="runtime",
                remedy="Name a folder with TVM's libraries or wheels for that architecture with --runtime.",
            )
    return libraries
