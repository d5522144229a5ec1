"""One file that knows what it is: a library, its weights and its manifest become OUT.so."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from relaxc.service.artifact.blocks import blocks_section, seal
from relaxc.service.artifact.elf import NewSection, append_sections, loaded_digest
from relaxc.service.artifact.entry import sha256_of
from relaxc.service.artifact.manifest import MANIFEST_SECTION, WEIGHTS, WEIGHTS_SECTION, Manifest, WeightsTable
from relaxc.service.artifact.parts import PART_SECTION, Part
from relaxc.service.artifact.safetensors import image_size, write_image
from relaxc.service.errors import ArtifactCorrupt, CompileFailed
from relaxc.service.signature import TensorSpec

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LIBRARY", "Built", "check_made", "pack", "pack_parts", "table_of"]

LIBRARY = "model.so"
"""The name of every artifact's library in the store."""

_BESIDE = ".safetensors"

_PAGE = 4096
"""Weights start at a multiple of this in the file, so that they can be mapped where they lie."""


@dataclass(frozen=True)
class Built:
    """A part of an artifact before it is packed: its library, its weights by name, and what it says of itself."""

    library: Path
    weights: Mapping[str, Any]
    manifest: Manifest


def pack_parts(parts: list[Built], out: Path, *, embed_max_bytes: int) -> list[Path]:
    """Write the parts of an artifact, one or several, to `out`; the files written, `out` first.

    The library of the first is the file's own code, those of the others are sections. Equal weights are kept once.
    `parts` is emptied: where nobody else holds a weight, its memory is there for the file once it is written.
    """
    weights, places = _merged(parts)
    first, *rest = [replace(part, weights=dict.fromkeys(part.weights)) for part in parts]
    parts.clear()
    others = tuple(
        Part(
            section=PART_SECTION.format(index=index),
            weights=places[index],
            target=part.manifest.target,
            tuning=part.manifest.digests.get("tuning", ""),
            schedule=part.manifest.schedule,
            passes=part.manifest.passes,
            verification=part.manifest.verification,
        )
        for index, part in enumerate(rest, 1)
    )
    own = len(first.weights) if others else None
    sections = [_of_file(other.section, part.library) for other, part in zip(others, rest, strict=True)]
    codes = {f"code.{index}": sha256_of(part.library) for index, part in enumerate(rest, 1)}
    digests = {**first.manifest.digests, **codes}
    manifest = replace(first.manifest, own_weights=own, others=others, digests=digests)
    return _pack(first.library, weights, manifest, out, embed_max_bytes, sections)


def _of_file(name: str, path: Path) -> NewSection:
    def write(file: BinaryIO) -> None:
        with path.open("rb") as source:
            shutil.copyfileobj(source, file, 1 << 20)

    return NewSection(name, _PAGE, write)


def _merged(parts: Sequence[Built]) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """The weights of all parts, equal ones once, and which of them each part has; the first part's are first."""
    merged = dict(parts[0].weights)
    places = [tuple(range(len(merged)))]
    if len(parts) > 1:
        known = {_content(tensor): index for index, tensor in reversed(list(enumerate(merged.values())))}
        for index, part in enumerate(parts[1:], 1):
            for name, tensor in part.weights.items():
                if (content := _content(tensor)) not in known:
                    known[content] = len(merged)
                    merged[f"part{index}.{name}"] = tensor
            places.append(tuple(known[_content(tensor)] for tensor in part.weights.values()))
    return merged, places


def _content(tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
    shape = tuple(int(size) for size in tensor.shape)
    return str(tensor.dtype), shape, hashlib.sha256(_bytes_of(tensor)).digest()


def pack(
    library: Path,
    weights: Mapping[str, Any],
    manifest: Manifest,
    out: Path,
    *,
    embed_max_bytes: int,
    sections: Sequence[NewSection] = (),
) -> list[Path]:
    """Write `library` with its weights and manifest, and with `sections`, to `out`; the files written, `out` first.

    `weights` are CPU tensors of TVM's or numpy arrays, in the order in which `main` takes them; `manifest.weights` is
    set from them, and the digest `code` from the library. An image of more than `embed_max_bytes` bytes goes to `out`
    with the suffix .safetensors. Equal arguments give equal bytes. Every weight is written once and copied nowhere
    else.
    """
    return _pack(library, dict(weights), manifest, out, embed_max_bytes, sections)


def _pack(
    library: Path,
    weights: dict[str, Any],
    manifest: Manifest,
    out: Path,
    embed_max_bytes: int,
    sections: Sequence[NewSection],
) -> list[Path]:
    """As `pack`; takes the weights out of `weights` as it writes them."""
    table = table_of(weights)

    def write_weights(file: BinaryIO) -> None:
        nonlocal table
        hashing = _Hashing(file)
        write_image(hashing, table.tensors, lambda name: _bytes_of(weights.pop(name)))  # type: ignore[arg-type]  # RawIOBase is no BinaryIO to typeshed
        table = replace(table, sha256=hashing.sha256.hexdigest())

    def write_manifest(file: BinaryIO) -> None:
        sealed = {**digests, WEIGHTS: table.sha256 or ""}
        file.write(replace(manifest, weights=table, digests=sealed).to_json().encode())

    files, added, sidecar = [out], list(sections), None
    if table.size_bytes <= embed_max_bytes:
        added += [NewSection(WEIGHTS_SECTION, _PAGE, write_weights)]
    else:
        sidecar = out.with_suffix(_BESIDE)
        with sidecar.open("wb") as beside:
            write_weights(beside)
        table = replace(table, file=sidecar.name)
        files.append(sidecar)
    digests = {**manifest.digests, "code": loaded_digest(library)}
    append_sections(library, out, [*added, NewSection(MANIFEST_SECTION, 8, write_manifest), blocks_section(sidecar)])
    seal(out, sidecar)
    return files


def check_made(files: Sequence[Path], model: str) -> None:
    """Raise CompileFailed unless these are the files of an artifact, as `pack` leaves them, of the model `model`.

    `model` is its digest. The store keeps them by the SHA-256 of the library alone: who is given that file out of
    another's job, or makes it anew, is given the weights beside it too. So it has to name both.
    """
    if not files or files[0].name != LIBRARY:
        raise CompileFailed(f"the job left no {LIBRARY}")
    try:
        manifest = Manifest.read(files[0])
    except ArtifactCorrupt as error:
        raise CompileFailed(f"the {LIBRARY} that the job left is none of relaxc's") from error
    if manifest.digests.get("model") != model:
        raise CompileFailed(f"the {LIBRARY} that the job left is of another model")
    weights = manifest.weights
    if [file.name for file in files[1:]] != ([] if weights.file is None else [files[0].with_suffix(_BESIDE).name]):
        raise CompileFailed(f"the job left other files than its {LIBRARY} has beside it")
    if any(sha256_of(file) != weights.sha256 for file in files[1:]):
        raise CompileFailed(f"the job left other weights than its {LIBRARY} has beside it")


def table_of(weights: Mapping[str, Any]) -> WeightsTable:
    """Return the manifest's table for these weights, inside the artifact."""
    tensors = tuple(
        TensorSpec(name, str(tensor.dtype), tuple(int(n) for n in tensor.shape)) for name, tensor in weights.items()
    )
    return WeightsTable(tensors, size_bytes=image_size(tensors))


class _Hashing(io.RawIOBase):
    """Hashes what is written to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()

    def write(self, block: Any) -> int:
        self.sha256.update(block)
        return self.file.write(block)


def _bytes_of(tensor: Any) -> memoryview:
    """A tensor's bytes, row-major, without a copy where they lie so already."""
    import numpy as np

    array = tensor if isinstance(tensor, np.ndarray) else _as_numpy(tensor)
    array = np.ascontiguousarray(array)
    if array.dtype.byteorder == ">":
        raise CompileFailed(f"a weight is big-endian: {array.dtype}")
    return array.reshape(-1).view(np.uint8).data


def _as_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    raw = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}.get(str(tensor.dtype))
    if raw is not None:  # numpy has no such dtype, so DLPack cannot carry it
        tensor = tensor._create_view(tensor.shape, raw)
    return np.from_dlpack(tensor)
