"""CUDA kernels in a library as machine code instead of source.

Without a GPU, TVM 0.27 writes the CUDA source of the kernels into a library and compiles it when that is
loaded, with tools that a machine that only runs artifacts does not have. The module is stored as
`"cuda", length, "cuda" (the format), kernels, source`; here it becomes `"cuda", length, "cubin", kernels, cubin`.
Strings are a 64-bit length and the bytes (tvm/src/backend/cuda/codegen/cuda_fallback_module.cc). The driver's
cuModuleLoadData, which gets the last, takes a cubin as well as a fat binary of machine code and PTX.
"""

from __future__ import annotations

import struct

from relaxc.service.errors import CompileFailed

__all__ = ["with_cubin"]


def with_cubin(embedded: bytes, source: str, cubin: bytes) -> bytes:
    """Return `embedded`, the packed imports of a module, with the CUDA module of this `source` holding `cubin`.

    Raise CompileFailed where the image is not as described above.
    """
    kind, code = _string(b"cuda"), _string(source.encode())
    end = embedded.find(code) + len(code)
    start = _start_of_module(embedded, kind, end)
    if end < len(code) or start is None or len(embedded) != 8 + _number(embedded, 0):
        raise CompileFailed("TVM packed a CUDA module in a form that is not known")
    kernels = embedded[start + len(kind) : end - len(code)]
    module = _string(b"cubin") + kernels + _string(cubin)
    image = embedded[8 : start - 8] + _number_bytes(len(module)) + module + embedded[end:]
    return _number_bytes(len(image)) + image


def _start_of_module(embedded: bytes, kind: bytes, end: int) -> int | None:
    """Where the module that reaches to `end` starts: its kind and its length stand before it."""
    at = embedded.find(kind, 0, end)
    while at >= 0:
        start = at + len(kind) + 8
        if start + _number(embedded, at + len(kind)) == end and embedded.startswith(kind, start):
            return start
        at = embedded.find(kind, at + 1, end)
    return None


def _string(value: bytes) -> bytes:
    return _number_bytes(len(value)) + value


def _number(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<Q", data, at)[0])


def _number_bytes(value: int) -> bytes:
    return struct.pack("<Q", value)
