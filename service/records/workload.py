"""What a tuning record is about: the digest of a kernel, its dtypes and shapes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from relaxc.service.records.record import Workload

if TYPE_CHECKING:
    from relaxc.schedules.ir.kernel import Kernel

__all__ = ["describe"]


def describe(func: Any, kernel: Kernel | None = None) -> Workload:
    """Return the workload of a PrimFunc, of whose `kernel` it is the default: what it says of itself.

    Its shapes are for people: those of the operator and what is behind it, or of the buffers.
    """
    from tvm import tirx

    from relaxc.schedules.ir.describe import kernel_of

    kernel = kernel or kernel_of(func)
    if (operator := kernel.operator) is not None:
        return Workload(kernel.digest, operator.dtype, f"{operator.shapes}{kernel.behind}", operator.digest)
    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    dtypes = dict.fromkeys(str(buffer.dtype) for buffer in buffers)
    return Workload(kernel.digest, "+".join(dtypes), _shapes(buffers), kernel.digest)


def _shapes(buffers: list[Any]) -> str:
    """`128x768 768x3072 128x3072`: a word a buffer, `scalar` for one without dims, symbolic sizes as a, b, …"""
    from tvm import tirx

    from relaxc.schedules.ir import tir

    names: dict[str, str] = {}

    def text(size: Any) -> str:
        known = tir.as_int(size)
        if known is not None:
            return str(known)
        for var in tir.variables(size):
            names.setdefault(str(var.name), _letters(len(names)))
        renamed = {var: tirx.Var(names[str(var.name)], var.ty.dtype) for var in tir.variables(size)}
        return re.sub(r"T\.int64\((-?\d+)\)|\s", r"\1", str(tir.substitute(size, renamed)))

    return " ".join("x".join(map(text, buffer.shape)) or "scalar" for buffer in buffers)


def _letters(number: int) -> str:
    """a, b, …, z, aa, ab, …"""
    rest, letter = divmod(number, 26)
    return (_letters(rest - 1) if rest else "") + chr(ord("a") + letter)
