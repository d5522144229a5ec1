"""A check of CUDA text before nvcc: each vector is read and written as elements of the size that its memory has.

    ushort2 m = *(ushort2*)(mask_ptr + i);      refused where `mask_ptr` is a `bool*`: four bytes for two

`int2`, `uint4` and their like are not judged: TVM packs halves and bytes into them.
"""

from __future__ import annotations

import re

from relaxc.service.errors import CompileFailed

__all__ = ["check_accesses"]

_BYTES = {
    **dict.fromkeys(("bool", "char", "uchar"), 1),
    **dict.fromkeys(("short", "ushort", "half", "bfloat16"), 2),
    **dict.fromkeys(("int", "uint", "float"), 4),
    **dict.fromkeys(("long", "longlong", "ulong", "ulonglong", "double"), 8),
}
_NAMES = {"signed char": "char", "unsigned char": "uchar", "int64_t": "long", "uint64_t": "ulong"}
_NAMES |= {"nv_bfloat16": "bfloat16", "__nv_bfloat16": "bfloat16"}
_TYPE = r"((?:signed |unsigned )?\w+)"
_KERNEL = re.compile(r'^extern "C" __global__ [^;{]*\{.*?^}', re.MULTILINE | re.DOTALL)
_DECLARED = re.compile(rf"{_TYPE}(?:\* __restrict__ (\w+)\b|\s(\w+)\[)")
_ACCESS = re.compile(rf"\*\((\w+?)([234])\*\)\((?:\(\({_TYPE}\*\)(\w+)\)|(\w+)) \+")


def check_accesses(source: str) -> None:
    """Raise CompileFailed where a kernel of TVM's takes a vector from memory of elements of another size."""
    for kernel in _KERNEL.findall(source):
        declared = {name or array: kind for kind, name, array in _DECLARED.findall(kernel)}
        for kind, _, cast, _, name in _ACCESS.findall(kernel):
            element = cast or declared.get(name, "")
            wanted, found = (_BYTES.get(_NAMES.get(each, each)) for each in (kind, element))
            if kind not in ("int", "uint") and wanted and found and wanted != found:
                raise CompileFailed(f"a kernel would read vectors of {kind} from memory of {element}", kernel=name)
