"""Reading an ONNX file that somebody else wrote: no tensor and no path in it is believed before it is checked."""

from __future__ import annotations

import math
import mmap
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from relaxc.service.config import settings
from relaxc.service.errors import ModelMalformed, ModelNotFound, ModelTooLarge, ModelUnsafe, UnsupportedModel
from relaxc.service.frontend.onnx.outside import Outside, without_data

__all__ = [
    "array",
    "bodies",
    "check_tensors",
    "external_files",
    "mapped",
    "one_line",
    "outline",
    "parse",
    "subgraphs",
    "tensors",
]

# protobuf refuses larger messages; larger models keep their weights in external data.
_PROTOBUF_MAX_BYTES = (1 << 31) - 1
_REASON_CHARS = 300
_OUTLINED_BYTES = 4096
_NOTHING = Outside(memoryview(b""))
_TYPED = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def one_line(text: object) -> str:
    """Return the text of somebody else's error as one line of bounded length."""
    line = " ".join(str(text).split())
    return line if len(line) <= _REASON_CHARS else line[:_REASON_CHARS] + "…"


def parse(path: Path) -> Any:
    """Return the file as `onnx.ModelProto`, external data not read.

    Raise ModelNotFound, ModelTooLarge over `max_model_bytes`, or ModelMalformed.
    """
    return _parsed(path.name, _content(path))


def mapped(path: Path) -> tuple[Any, Outside]:
    """Return what `parse` does, without the large data of its tensors, and that: it is mapped, and read where it lies.

    Raise what `parse` does.
    """
    message, outside = without_data(_content(path))
    return _parsed(path.name, message), outside


def _content(path: Path) -> memoryview:
    """The content of a file of a size that may be parsed, in no memory of its own."""
    if not path.is_file():
        raise ModelNotFound(f"there is no file {path}", path=str(path))
    size, limit = path.stat().st_size, settings().max_model_bytes
    if size > limit:
        raise ModelTooLarge(f"{path.name} has {size} bytes; RELAXC_MAX_MODEL_BYTES allows {limit}", limit_bytes=limit)
    if size > _PROTOBUF_MAX_BYTES:
        raise ModelMalformed(f"{path.name} has {size} bytes, more than a protobuf message can have")
    if not size:
        return memoryview(b"")
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _parsed(name: str, content: bytes | memoryview) -> Any:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise ModelMalformed(f"{name} is damaged: it does not parse as an ONNX protobuf") from error
    _check_text(name, model)
    if not model.HasField("graph"):
        raise ModelMalformed(f"{name} has no graph")
    return model


def outline(path: Path) -> Any:
    """Return the model at `path` without the data of tensors over 4 KiB, after `check_tensors`.

    It is shared, and not to be changed: the file is parsed once as long as it stays the same. Raise what `parse` and
    `check_tensors` do.
    """
    facts = path.stat() if path.is_file() else None
    return _outline(path, facts and (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns))


@lru_cache(maxsize=1)
def _outline(path: Path, _facts: object) -> Any:
    model, outside = mapped(path)
    check_tensors(model, path, outside)
    for tensor in tensors(model):
        outside.put_back(tensor) if _claimed_bytes(tensor) <= _OUTLINED_BYTES else _empty(tensor)
    small = type(model)()
    small.CopyFrom(model)  # its memory goes as a whole
    return small


def _empty(tensor: Any) -> None:
    for name in ("raw_data", *_TYPED):
        tensor.ClearField(name)


def _check_text(name: str, model: Any) -> None:
    """protobuf gives text that is not UTF-8 as bytes; no name may be that."""
    texts = [entry.domain for entry in model.opset_import]
    texts += [model.producer_name, model.producer_version]
    for body in bodies(model):
        texts += [value if isinstance(value, str | bytes) else value.name for value in (*body.input, *body.output)]
        texts += [tensor.name for tensor in getattr(body, "initializer", ())]
        texts += [dim.dim_param for value in getattr(body, "input", ()) for dim in _dims(value)]
        for node in body.node:
            texts += [node.name, node.op_type, node.domain, node.overload, *node.input, *node.output]
            texts += [attribute.name for attribute in node.attribute]
    if any(isinstance(text, bytes) for text in texts):
        raise ModelMalformed(f"{name} has a name that is not UTF-8")


def _dims(value: Any) -> Any:
    return () if isinstance(value, str | bytes) else value.type.tensor_type.shape.dim


def subgraphs(nodes: Any) -> Iterator[Any]:
    """Yield the graphs in the attributes of `nodes`, and theirs, outer before inner."""
    for node in nodes:
        for attribute in node.attribute:
            for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield graph
                yield from subgraphs(graph.node)


def bodies(model: Any) -> Iterator[Any]:
    """Yield the model's graph, its functions, and the graphs in the attributes of their nodes, outer before inner."""
    for whole in (model.graph, *model.functions):
        yield whole
        yield from subgraphs(whole.node)


def tensors(model: Any) -> Iterator[Any]:
    """Yield every dense tensor in the file's order: initializers, attributes, those of subgraphs and functions."""
    for body in bodies(model):
        yield from getattr(body, "initializer", ())
        for node in body.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def external_files(model: Any, path: Path) -> list[tuple[str, Path]]:
    """Return the location and path of each external data file of the model at `path`, in the order of first use.

    Raise ModelUnsafe for a location that leaves its folder, is the model itself or is no regular file, ModelMalformed
    when it is missing.
    """
    found: dict[str, Path] = {}
    for tensor in tensors(model):
        if _is_external(tensor):
            location = _external_entries(tensor).get("location", "")
            if location not in found:
                found[location] = _resolve(tensor.name, location, path.parent)
                if found[location].samefile(path):
                    name = tensor.name
                    raise ModelUnsafe(f"tensor {name!r} keeps its data in the model itself, {location!r}", tensor=name)
    return list(found.items())


def check_tensors(model: Any, path: Path, outside: Outside = _NOTHING) -> int:
    """Return the bytes of all tensors of the model at `path`, each checked to hold what its shape and dtype claim.

    Raise ModelMalformed, ModelUnsafe, UnsupportedModel for a dtype that has no bytes (string), or
    ModelTooLarge when the tensors add up to more than `max_model_bytes`.
    """
    files = dict(external_files(model, path))
    limit = settings().max_model_bytes
    total = 0
    for tensor in tensors(model):
        claimed = _claimed_bytes(tensor)
        if _is_external(tensor):
            _check_external(tensor, claimed, files)
        elif claimed != (held := _held_bytes(tensor, outside)):
            raise ModelMalformed(
                f"tensor {tensor.name!r} of shape {list(tensor.dims)} claims {claimed} bytes and the file holds {held}",
                tensor=tensor.name,
            )
        total += claimed
    if total > limit or sum(path.stat().st_size for path in files.values()) > limit:
        raise ModelTooLarge(f"the tensors have {total} bytes; RELAXC_MAX_MODEL_BYTES allows {limit}", limit_bytes=limit)
    return total


def array(tensor: Any, folder: Path, outside: Outside = _NOTHING) -> Any:
    """Return a tensor that `check_tensors` passed, as a numpy array.

    That of external data and of data `outside` is a view of the mapped file, at any address: it may not be aligned.
    """
    import numpy as np
    import onnx

    if not _is_external(tensor):
        data = outside.data(tensor)
        if data is None or _bits(tensor.data_type) < 8:
            outside.put_back(tensor)
            return onnx.numpy_helper.to_array(tensor)
        return np.frombuffer(data, onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).reshape(tuple(tensor.dims))
    entries = _external_entries(tensor)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    shape = tuple(tensor.dims)
    if 0 in shape:
        return np.empty(shape, dtype)
    path = _resolve(tensor.name, entries["location"], folder)
    start, bits = int(entries.get("offset", 0)), _bits(tensor.data_type)
    if bits < 8:
        held = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims)
        held.raw_data = np.memmap(path, np.uint8, "r", start, (-(-math.prod(shape) * bits // 8),)).tobytes()
        return onnx.numpy_helper.to_array(held)
    return np.memmap(path, dtype, "r", start, shape)


def _is_external(tensor: Any) -> bool:
    return bool(tensor.data_location == 1)


def _external_entries(tensor: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _resolve(name: str, location: str, folder: Path) -> Path:
    relative = PurePosixPath(location.replace("\\", "/"))
    if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
        raise ModelUnsafe(
            f"tensor {name!r} keeps its data at {location!r}, which is not inside the model's folder", tensor=name
        )
    root = folder.resolve()
    path = (root / relative).resolve()
    if not path.is_relative_to(root):
        raise ModelUnsafe(f"tensor {name!r} keeps its data at {location!r}, a link out of the folder", tensor=name)
    if not path.exists():
        raise ModelMalformed(f"the external data file {location!r} of tensor {name!r} is not there", tensor=name)
    if not stat.S_ISREG(path.stat().st_mode):
        raise ModelUnsafe(f"the external data {location!r} of tensor {name!r} is not a regular file", tensor=name)
    return path


def _claimed_bytes(tensor: Any) -> int:
    import onnx

    if any(dim < 0 for dim in tensor.dims):
        raise ModelMalformed(f"tensor {tensor.name!r} has the shape {list(tensor.dims)}", tensor=tensor.name)
    if tensor.data_type in (onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        raise UnsupportedModel(f"tensor {tensor.name!r} has the dtype {kind}", tensor=tensor.name, dtype=kind)
    if tensor.data_type not in onnx.TensorProto.DataType.values() or tensor.data_type == 0:
        raise ModelMalformed(f"tensor {tensor.name!r} has the unknown dtype {tensor.data_type}", tensor=tensor.name)
    count: int = math.prod(tensor.dims)
    return -(-count * _bits(tensor.data_type) // 8)


def _bits(data_type: int) -> int:
    import onnx

    name = onnx.TensorProto.DataType.Name(data_type)
    for prefix, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4", 4), ("INT2", 2), ("UINT2", 2), ("FLOAT8", 8)):
        if name.startswith(prefix):
            return bits
    itemsize: int = onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize
    return itemsize * 8


def _held_bytes(tensor: Any, outside: Outside) -> int:
    """Bytes that the data in the file stands for; a typed field may use more for each (an int32 for a float16)."""
    if tensor.HasField("raw_data"):
        data = outside.data(tensor)
        return len(tensor.raw_data if data is None else data)
    count = max(len(getattr(tensor, field)) for field in _TYPED)
    bits = _bits(tensor.data_type)
    # Sub-byte numbers are packed to a byte in each int32.
    return count if bits < 8 else count * bits // 8


def _check_external(tensor: Any, claimed: int, files: dict[str, Path]) -> None:
    entries = _external_entries(tensor)
    size = files[entries["location"]].stat().st_size
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", size - offset))
    except ValueError as error:
        raise ModelMalformed(f"the external data of tensor {tensor.name!r} has an offset that is no number") from error
    if offset < 0 or length < claimed or offset + length > size:
        raise ModelMalformed(
            f"tensor {tensor.name!r} claims {claimed} bytes at {offset} of {entries['location']!r}, "
            f"which has {size} bytes",
            tensor=tensor.name,
        )
