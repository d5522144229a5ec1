"""What kind of model a file is, by its content, and its digest. Needs no tvm and no torch."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from relaxc.service.config import settings
from relaxc.service.errors import ModelNotFound, ModelTooLarge, UnknownFormat
from relaxc.service.input_files import is_special, see
from relaxc.service.request import ModelFormat, ModelRef, model_digest

__all__ = ["digest", "external_files", "former_digest", "identify", "only_format"]

_ZIP = b"PK\x03\x04"
_HEAD_BYTES = 16
_VARINT, _DELIMITED = 0, 2
# Field number -> wire type of onnx.ModelProto (onnx/onnx.proto3).
_MODEL_PROTO = {
    1: _VARINT,  # ir_version
    2: _DELIMITED,  # producer_name
    3: _DELIMITED,  # producer_version
    4: _DELIMITED,  # domain
    5: _VARINT,  # model_version
    6: _DELIMITED,  # doc_string
    7: _DELIMITED,  # graph
    8: _DELIMITED,  # opset_import
    14: _DELIMITED,  # metadata_props
    20: _DELIMITED,  # training_info
    25: _DELIMITED,  # functions
    26: _DELIMITED,  # configuration
}
_IR_VERSION, _GRAPH = 1, 7


def identify(path: Path) -> ModelFormat:
    """Return the format of the file at `path`. A truncated file still counts as what it began as.

    Raise ModelNotFound, ModelTooLarge, or UnknownFormat.
    """
    format = only_format(path)
    with path.open("rb") as file:
        if format is ModelFormat.PT2:
            if _is_exported_program(file):
                return format
            raise UnknownFormat(f"{path.name} is a zip archive, but not one that torch.export.save wrote")
        if _is_onnx(file, path.stat().st_size):
            return format
    raise _unknown(path)


def only_format(path: Path) -> ModelFormat:
    """Return the one format that the file at `path` can have, by its first bytes; `identify` says whether it has it.

    It is no more than a look: a server may do it with what somebody else wrote. Raise ModelNotFound, ModelTooLarge, or
    UnknownFormat for what cannot be a model, as no file can that begins with a brace.
    """
    _size_of(path)
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_ZIP):
        return ModelFormat.PT2
    tag = _varint(io.BytesIO(head))
    if tag is None or _MODEL_PROTO.get(tag >> 3) != tag & 7:
        raise _unknown(path)
    return ModelFormat.ONNX


def digest(path: Path, format: ModelFormat) -> ModelRef:
    """Return the model by content, with the digest of `model_digest`, and what `check_unchanged` needs.

    Raise ModelTooLarge over `max_model_bytes`, and for external data what `relaxc.service.frontend.onnx.file` raises.
    """
    seen = see([path])  # before it says which files are beside it
    data = external_files(path, format)
    seen += see(data.values())
    size = _size_of(path) + sum(map(_size_of, data.values()))
    name = model_digest(_sha256_of(path), {name: _sha256_of(file) for name, file in data.items()})
    return ModelRef(format, name, size, path, seen)


def external_files(path: Path, format: ModelFormat) -> dict[str, Path]:
    """Return the files beside the model that it keeps tensors in, by their names from its folder on.

    Raise ModelTooLarge where they have over `max_model_bytes` together, and what `frontend.onnx.file` raises.
    """
    found = _locations(path, format)
    data = {PurePosixPath(location.replace("\\", "/")).as_posix(): file for location, file in found}
    _check_size(path, _size_of(path) + sum(map(_size_of, data.values())))
    return data


def former_digest(path: Path, format: ModelFormat) -> str:
    """Return the digest that a model had before `model_digest`, and that artifacts of then name it by.

    It was the SHA-256 of the file, and then of each data file's location, size as eight bytes, and content.
    """
    total = hashlib.sha256()
    _sha256_of(path, into=total)
    for location, file in _locations(path, format):
        total.update(location.encode() + b"\0" + _size_of(file).to_bytes(8, "little"))
        _sha256_of(file, into=total)
    return total.hexdigest()


def _locations(path: Path, format: ModelFormat) -> list[tuple[str, Path]]:
    if format is not ModelFormat.ONNX:
        return []
    from relaxc.service.frontend.onnx import file as onnx_file

    return onnx_file.external_files(onnx_file.mapped(path)[0], path)


def _sha256_of(path: Path, *, into: hashlib._Hash | None = None) -> str:
    """The digest of the file, or with `into` of what came before it, too."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: into or hashlib.sha256()).hexdigest()


def _unknown(path: Path) -> UnknownFormat:
    return UnknownFormat(f"{path.name} is neither an ONNX file nor a torch.export archive")


def _size_of(path: Path) -> int:
    if is_special(path):
        raise ModelNotFound(f"cannot read {path}: it is no regular file", path=str(path))
    if not path.is_file():
        raise ModelNotFound(f"there is no file {path}", path=str(path))
    size = path.stat().st_size
    _check_size(path, size)
    return size


def _check_size(path: Path, size: int) -> None:
    limit = settings().max_model_bytes
    if size > limit:
        raise ModelTooLarge(
            f"{path.name} has {size} bytes; RELAXC_MAX_MODEL_BYTES allows {limit}", size_bytes=size, limit_bytes=limit
        )


def _is_exported_program(file: BinaryIO) -> bool:
    """Whether a zip is a .pt2, in the layout of PyTorch 2.8 or the one before; a damaged zip counts as one."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = {name.split("/", 1)[-1] for name in archive.namelist()} | set(archive.namelist())
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError):
        return True
    return "archive_format" in names or "serialized_exported_program.json" in names


def _is_onnx(file: BinaryIO, size: int) -> bool:
    """Whether the top level reads as a ModelProto.

    A file that starts with its IR version and another field of it is one even if it is damaged or cut further on.
    """
    seen: list[int] = []
    while file.tell() < size:
        tag = _varint(file)
        if tag is None:
            break
        number, wire_type = tag >> 3, tag & 7
        if _MODEL_PROTO.get(number) != wire_type:
            return len(seen) > 1 and seen[0] == _IR_VERSION
        seen.append(number)
        value = _varint(file)
        if value is None:
            break
        if wire_type == _DELIMITED:
            if value > size - file.tell():
                break
            file.seek(value, 1)
    return _IR_VERSION in seen or (_GRAPH in seen and file.tell() == size)


def _varint(file: BinaryIO) -> int | None:
    """The next protobuf varint; None at the end of the file or after the ten bytes that one may have."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None
