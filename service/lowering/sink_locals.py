"""Registers of a CUDA kernel that are declared before its launch, as TVM's scans along an axis do.

    r = alloc_local(1)                       with launch_thread("threadIdx.x", 1024):
    with launch_thread("threadIdx.x", 1024):     →      r = alloc_local(1)
        …                                                   …

Left where they are they become memory of the host, whose address the kernel is given.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

__all__ = ["SinkLocals"]


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.SinkLocals")
class SinkLocals:
    """Rewrites PrimFuncs with launches, and leaves others unchanged."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.SeqStmt, _sunk)))


def _sunk(sequence: Any) -> Any:
    """Each launch of a sequence with the registers that stand before it."""
    statements: list[Any] = []
    registers: list[Any] = []
    found = False
    for each in sequence.seq:
        if isinstance(each, tirx.AllocBuffer) and str(each.buffer.scope()) == "local":
            registers.append(each)
        elif registers and _is_launch(each):
            body = tirx.stmt_seq(*registers, each.body)
            statements.append(tirx.AttrStmt(each.node, each.attr_key, each.value, body))
            registers, found = [], True
        else:
            statements += [*registers, each]
            registers = []
    return tirx.stmt_seq(*statements, *registers) if found else sequence


def _is_launch(statement: Any) -> bool:
    return isinstance(statement, tirx.AttrStmt) and statement.attr_key == "thread_extent"
