"""Which PrimFunc a tuning record is about: a hash of everything that its kernel depends on, its dtypes and shapes."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from relaxc.service.records.record import Workload

__all__ = ["describe", "workload_of"]

_NOT_OF_THE_KERNEL = ("global_symbol", "op_pattern")
"""Attributes that say what a function is called and whether it may be fused, and nothing of what it computes."""


def workload_of(func: Any) -> str:
    """Return 16 hex digits that two PrimFuncs share when one schedule serves both, in any process and any model.

    The names of the function, its buffers, loops and symbolic sizes do not count. Its blocks' names do: templates know
    their block by its name, which TVM's structural hash leaves out.
    """
    import tvm_ffi

    from relaxc.schedules.ir.blocks import block_realizes

    for name in _NOT_OF_THE_KERNEL:
        if func.attrs is not None and name in func.attrs:
            func = func.without_attr(name)
    structure = tvm_ffi.structural_hash(func) & (2**64 - 1)
    blocks = [realize.block.name_hint for realize in block_realizes(func)]
    return hashlib.sha256(f"{structure:016x} {' '.join(blocks)}".encode()).hexdigest()[:16]


def describe(func: Any) -> Workload:
    """Return the workload of a PrimFunc with its dtypes and shapes, which tell two apart whose hashes collide.

    Of one with a plan it is the operator, however that is computed.
    """
    from tvm import tirx

    from relaxc.schedules.plan import plan_of

    plan = plan_of(func)
    if plan is not None:
        return Workload(plan.operator.digest, plan.operator.dtype, plan.operator.shapes)
    buffers = [param for param in func.params if tirx.is_buffer_var(param)]
    dtypes = dict.fromkeys(str(buffer.dtype) for buffer in buffers)
    return Workload(workload_of(func), "+".join(dtypes), _shapes(buffers))


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
