"""A safetensors image whose every tensor starts at a multiple of 64 bytes, written as a stream.

The library's own writer aligns the data as a whole only, and makes the image in memory first. The format allows
no holes, so a gap is a uint8 tensor of its own, named `__pad__.N`.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from relaxc.service.errors import CompileFailed
from relaxc.service.signature import TensorSpec

__all__ = ["ALIGN", "image_size", "write_image"]

ALIGN = 64
"""Bytes: what TVM's kernels assume of a buffer, and one cache line."""

_BLOCK = 256 << 10
"""Bytes written at once. The kernel looks for as many free pages in a row as are written, up to 2 MB; a long row is
seldom one that was used lately, and a virtual machine may have to fetch it from its host, at 2 ms a megabyte."""

_PAD = "__pad__."
_TAGS = {
    "bool": ("BOOL", 1), "int8": ("I8", 1), "uint8": ("U8", 1), "int16": ("I16", 2), "uint16": ("U16", 2),
    "int32": ("I32", 4), "uint32": ("U32", 4), "int64": ("I64", 8), "uint64": ("U64", 8),
    "float16": ("F16", 2), "bfloat16": ("BF16", 2), "float32": ("F32", 4), "float64": ("F64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
}  # fmt: skip


def _size_bytes(spec: TensorSpec) -> int:
    return math.prod(int(size) for size in spec.shape) * _TAGS[spec.dtype][1]


def _header(tensors: Iterable[TensorSpec]) -> bytes:
    rows: dict[str, dict[str, Any]] = {}

    def add(name: str, tag: str, shape: list[int], start: int, size: int) -> int:
        rows[name] = {"dtype": tag, "shape": shape, "data_offsets": [start, start + size]}
        return start + size

    end = 0
    for spec in tensors:
        if spec.name.startswith("__"):
            raise CompileFailed(f"a weight may not be named {spec.name!r}: names that begin with __ are reserved")
        end = add(spec.name, _TAGS[spec.dtype][0], [int(n) for n in spec.shape], end, _size_bytes(spec))
        if gap := -end % ALIGN:
            end = add(f"{_PAD}{len(rows)}", "U8", [gap], end, gap)
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    return len(text).to_bytes(8, "little") + text


def image_size(tensors: Iterable[TensorSpec]) -> int:
    """Return the bytes that `write_image` writes for these tensors."""
    tensors = list(tensors)
    return len(_header(tensors)) + sum(_size_bytes(t) + -_size_bytes(t) % ALIGN for t in tensors)


def write_image(file: BinaryIO, tensors: Iterable[TensorSpec], data: Callable[[str], memoryview]) -> None:
    """Write the image at the file's position, a multiple of 64.

    `data` gives a tensor's bytes by its name, row-major, when they are wanted; they are let go before the next.
    """
    tensors = list(tensors)
    file.write(_header(tensors))
    for spec in tensors:
        block = data(spec.name)
        if len(block) != _size_bytes(spec):
            raise CompileFailed(f"weight {spec} has {len(block)} bytes, not {_size_bytes(spec)}")
        for start in range(0, len(block), _BLOCK):
            file.write(block[start : start + _BLOCK])
        file.write(b"\0" * (-len(block) % ALIGN))
        del block
