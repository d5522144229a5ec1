"""Samples to calibrate with, out of an `.npz` that somebody sent: no pickles, and sizes before bytes are read."""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from relaxc.service.errors import InvalidOption
from relaxc.service.signature import TensorSpec

__all__ = ["MOST_BYTES", "MOST_SAMPLES", "UNREADABLE", "read_samples"]

Array = np.ndarray[Any, Any]

MOST_BYTES, MOST_SAMPLES = 1 << 30, 512
"""Of all arrays in memory, and of samples that are run."""

_OPTION = "calibration"

UNREADABLE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, NotImplementedError, RuntimeError, ValueError,
    LookupError, TypeError, SyntaxError, MemoryError, TokenError,
)  # fmt: skip
"""What the readers of zip files and of .npy headers raise for bytes that are none."""


def read_samples(path: Path, inputs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """Return the samples in the file, an array for each input each.

    The file has one array for each input, by name, of the input's dtype: with an axis before the input's own, the
    samples; or, of the input's own rank, as many along its first axis as there are samples, each of the input's size
    there, or of 1 where that is symbolic. Raise InvalidOption for anything else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = _arrays(archive, inputs)
    except UNREADABLE as error:
        raise _bad(f"{path.name} is no .npz that can be read: {str(error)[:200]}") from error
    several = {spec.name: list(_split(arrays[spec.name], spec)) for spec in inputs}
    counts = {name: len(parts) for name, parts in several.items()}
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise _bad(f"the samples are not as many of each input: {listed}")
    count = min(min(counts.values()), MOST_SAMPLES)
    if not count:
        raise _bad("there are no samples")
    return [{name: parts[index] for name, parts in several.items()} for index in range(count)]


def _bad(message: str) -> InvalidOption:
    remedy = "Write them with numpy.savez(FILE, **{input: array}), the samples along the first axis."
    return InvalidOption(message, option=_OPTION, remedy=remedy)


def _arrays(archive: zipfile.ZipFile, inputs: Sequence[TensorSpec]) -> dict[str, Array]:
    held = {info.filename: info for info in archive.infolist()}
    wanted = {f"{spec.name}.npy": spec for spec in inputs}
    if set(held) != set(wanted):
        lacking, extra = sorted(set(wanted) - set(held))[:5], sorted(set(held) - set(wanted))[:5]
        raise _bad(
            f"the samples are not those of the inputs: {lacking} are missing, {[e[:40] for e in extra]} too many"
        )
    total = sum(info.file_size for info in held.values())
    if total > MOST_BYTES:
        raise _bad(f"the samples have {total} bytes; at most {MOST_BYTES} are read")
    found = {}
    for name, spec in wanted.items():
        with archive.open(held[name]) as file:
            found[spec.name] = _array(file, held[name].file_size, spec)
    return found


def _array(file: IO[bytes], size: int, spec: TensorSpec) -> Array:
    """The array in an .npy stream of `size` bytes: its header is checked against them before they are read."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file)
    except UNREADABLE as error:
        raise _bad(f"the samples of {spec.name} are no .npy array") from error
    if dtype.hasobject or dtype.name != spec.dtype or fortran or not dtype.isnative:
        order = " in Fortran's order" if fortran else "" if dtype.isnative else " of the other byte order"
        raise _bad(f"the samples of {spec.name} are {str(dtype)[:40]}{order}; the input is {spec.dtype}")
    if (
        any(type(each) is not int or each < 0 for each in shape)
        or math.prod(shape) * dtype.itemsize != size - file.tell()
    ):
        raise _bad(f"the samples of {spec.name} have another size than their header says")
    found = np.frombuffer(file.read(size), dtype).reshape(shape)
    if found.dtype.kind in "fV" and not np.isfinite(found).all():
        raise _bad(f"the samples of {spec.name} have values that are not finite, of which no scale can be chosen")
    return found


def _split(array: Array, spec: TensorSpec) -> Iterator[Array]:
    rank = len(spec.shape)
    if array.ndim == rank + 1:
        _check(array.shape[1:], spec)
        yield from (array[index, ...] for index in range(array.shape[0]))
        return
    if array.ndim != rank or not rank:
        raise _bad(f"the samples of {spec.name} have rank {array.ndim}; the input has {rank}")
    batch = spec.shape[0] if isinstance(spec.shape[0], int) else 1
    if not batch or array.shape[0] % batch:
        raise _bad(f"{array.shape[0]} rows are no whole batches of {batch} of {spec.name}")
    _check((batch, *array.shape[1:]), spec)
    for start in range(0, array.shape[0], batch):
        yield array[start : start + batch]


def _check(shape: tuple[int, ...], spec: TensorSpec) -> None:
    fits = all(not isinstance(want, int) or size == want for size, want in zip(shape, spec.shape, strict=True))
    if not fits or 0 in shape:
        raise _bad(f"a sample of {spec.name} is {list(shape)}; the input is {list(spec.shape)}")
