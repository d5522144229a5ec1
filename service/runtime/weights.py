"""An artifact's weights, mapped from the file they lie in; on a GPU, copied there once for all sessions."""

from __future__ import annotations

import json
import math
import mmap
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tvm_ffi

from relaxc.service.errors import ArtifactCorrupt
from relaxc.service.runtime.tensors import ALIGN, aligned_copy, extent, item_bytes, shaped, wrap_numpy
from relaxc.service.runtime.tvm_runtime import copied_to
from relaxc.service.signature import TensorSpec

__all__ = ["DeviceWeights", "map_weights", "uploaded"]

_MAX_HEADER_BYTES = 100 << 20  # the safetensors library's own limit
_TAGS = {
    "bool": "BOOL", "int8": "I8", "uint8": "U8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
}  # fmt: skip


class DeviceWeights(list[tvm_ffi.Tensor]):
    """Weights on a GPU, copied there once."""

    def __init__(self, weights: Iterable[tvm_ffi.Tensor], device: tvm_ffi.Device) -> None:
        super().__init__(copied_to(weight, device) for weight in weights)


_UPLOADED: WeakValueDictionary[tuple[Any, ...], DeviceWeights] = WeakValueDictionary()
_UPLOADING = threading.Lock()


def uploaded(
    weights: Sequence[tvm_ffi.Tensor],
    path: Path,
    offset: int,
    device: tvm_ffi.Device,
    *,
    part: int = 0,
    check: Callable[[int], None] = lambda size_bytes: None,
) -> DeviceWeights:
    """Return `weights`, mapped from `offset` of the file at `path`, on `device`: one copy for all who hold it.

    `part` is the artifact's part that has them. A file that changed since is another one. Before they are copied,
    `check` is called with their size.
    """
    seen = path.stat()
    key = (seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size, offset, str(device), part)
    with _UPLOADING:
        held = _UPLOADED.get(key)
        if held is None:
            check(sum(end - start for start, end in map(extent, weights)))
            held = _UPLOADED[key] = DeviceWeights(weights, device)
    return held


def map_weights(path: Path, offset: int, size_bytes: int, table: Sequence[TensorSpec]) -> list[tvm_ffi.Tensor]:
    """Return the tensors of `table`, in its order, from the safetensors image at `offset` of the file at `path`.

    They are views of read-only pages that the kernel reads on first use and shares between processes; one that is
    not aligned to 64 bytes is a copy. Raise ArtifactCorrupt where image and table differ.
    """
    if not table:
        return []
    try:
        with path.open("rb") as file:
            page = offset - offset % mmap.ALLOCATIONGRANULARITY
            memory = mmap.mmap(file.fileno(), offset - page + size_bytes, access=mmap.ACCESS_READ, offset=page)
    except (OSError, ValueError) as error:
        raise ArtifactCorrupt(f"the weights in {path} cannot be mapped: {error}") from error
    image = np.frombuffer(memory, np.uint8)[offset - page :]
    rows, data = _header(path, image)
    return [_tensor(path, data, spec, rows.get(spec.name)) for spec in table]


def _header(path: Path, image: np.ndarray[Any, Any]) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    length = int.from_bytes(image[:8].tobytes(), "little")
    if image.size < 8 or length > min(_MAX_HEADER_BYTES, image.size - 8):
        raise ArtifactCorrupt(f"the weights in {path} are truncated")
    try:
        rows = json.loads(image[8 : 8 + length].tobytes())
    except (ValueError, RecursionError) as error:
        raise ArtifactCorrupt(f"the weights in {path} have no safetensors header") from error
    if not isinstance(rows, dict):
        raise ArtifactCorrupt(f"the weights in {path} have no safetensors header")
    return rows, image[8 + length :]


def _tensor(path: Path, data: np.ndarray[Any, Any], spec: TensorSpec, row: Any) -> tvm_ffi.Tensor:
    shape = [int(size) for size in spec.shape]
    size = math.prod(shape) * item_bytes(spec.dtype)
    match row:
        case {"dtype": str(tag), "shape": [*dims], "data_offsets": [int(start), int(end)]} if (
            tag == _TAGS[spec.dtype] and dims == shape and 0 <= start <= end <= data.size and end - start == size
        ):
            block = data[start:end]
        case _:
            raise ArtifactCorrupt(f"the weights in {path} do not have {spec}")
    if block.__array_interface__["data"][0] % ALIGN or not size:
        return aligned_copy(block, spec.dtype, shape)
    return wrap_numpy(shaped(block, spec.dtype, shape), spec.dtype)
