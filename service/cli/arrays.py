"""Arrays by name in .npz files, and random ones; what numpy cannot name, such as bfloat16, is kept as raw bits."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaxc.service.errors import InputError, InputType, InvalidOption

if TYPE_CHECKING:
    from relaxc.service.signature import Signature

__all__ = ["read_npz", "replacing", "write_npz"]


def read_npz(path: Path, signature: Signature) -> dict[str, Any]:
    """Return the arrays of a .npz by name, raw ones as the bfloat16 or int4 that the signature says they are.

    Raise InputError where there is no such file or it is no .npz, InputType for an array of Python objects.
    """
    import ml_dtypes
    import numpy as np

    from relaxc.service.frontend.onnx.samples import UNREADABLE

    kinds = {spec.name: spec.codes or spec.dtype for spec in signature.inputs}
    raw = {name: getattr(ml_dtypes, kind) for name, kind in kinds.items() if hasattr(ml_dtypes, kind)}
    try:
        if path.exists() and not path.is_file():  # a pipe is waited for
            raise InputError(f"cannot read {path}: it is no regular file", remedy="Check the path.")
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError(f"{path} holds one array without a name", remedy="Use np.savez(path, NAME=array).")
            arrays = {name: _array(archive, name, path, UNREADABLE) for name in archive.files}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", remedy="Check the path.") from error
    except UNREADABLE as error:
        raise InputError(f"{path} is not a .npz file", remedy="Write it with np.savez(path, NAME=array).") from error
    return {
        name: array.view(raw[name]) if name in raw and array.dtype == f"V{np.dtype(raw[name]).itemsize}" else array
        for name, array in arrays.items()
    }


def _array(archive: Any, name: str, path: Path, unreadable: tuple[type[Exception], ...]) -> Any:
    try:
        return archive[name]
    except unreadable as error:
        raise InputType(f"array {name!r} of {path} is damaged or holds Python objects", name=name) from error


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name, in their order, in one step. Unlike np.savez it takes any name, `file` too."""
    import numpy as np

    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():
            raw = array if array.dtype.isbuiltin == 1 else array.view(f"V{array.dtype.itemsize}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, raw, allow_pickle=False)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file that takes the place of `path` at the end, or is removed if something is raised.

    What is no regular file, such as a pipe or /dev/null, stays what it is, and is written to at the end. Raise
    InvalidOption where it is a folder, or its folder is missing or cannot be written.
    """
    if path.is_dir():
        raise InvalidOption(f"cannot write {path}: it is a folder", remedy="Name a file.")
    stays = path.exists() and not path.is_file()
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=None if stays else path.parent)
    except OSError as error:
        raise InvalidOption(f"cannot write {path}: {error.strerror}", remedy="Check the folder.") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _put(temporary, path, stays=stays)
    except OSError as error:
        told = error.strerror or error
        raise InvalidOption(f"cannot write {path}: {told}", remedy="Check the file and its disk.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _put(temporary: Path, path: Path, *, stays: bool) -> None:
    if stays:
        with temporary.open("rb") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
    else:
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
