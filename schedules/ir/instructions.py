"""Which instruction a scheduled PrimFunc multiplies with: a tensor core's, or a CPU's dot product's."""

from __future__ import annotations

import re

from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.target.codegen import llvm_get_intrinsic_name

from relaxc.schedules.ir.tir import collect
from relaxc.schedules.ir.types import PrimFunc

__all__ = ["instruction_of"]

_PTX = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync)\.[\w.]*\w")
_LLVM = re.compile(r"^llvm\.(?:x86|aarch64)\..*(?:dp|mmla|dot|pmadd)")
_IN_TEXT = re.compile(r"@(llvm\.x86\.tdp\w+)|^\w+_(llvm\.(?:x86|aarch64)\.[\w.]*(?:dp|mmla|dot)[\w.]*)$")
"""On tile registers, in LLVM IR that a kernel brings along; or what a function that it calls is named after."""
_INTRINSICS = frozenset({"tirx.call_llvm_intrin", "tirx.call_llvm_pure_intrin"})
_KINDS = {"float16": "f16", "bfloat16": "bf16"}
"""How PTX calls them."""
_TIR_MMA = frozenset({"tirx.ptx_mma", "tirx.ptx_mma_sp", "tirx.tvm_mma_sync"})


def instruction_of(func: PrimFunc) -> str | None:
    """Return its PTX or LLVM name as it stands in the code; None where there is none: operands are widened then.

    Of several it is a warp group's, for a text may share functions with kernels of single warps; one of a dtype that
    the kernel reads or writes; and the longest: kernels that multiply with one shape have edges in a smaller one.
    """
    kinds = {_KINDS.get(str(each.dtype), "") for each in func.params if tirx.is_buffer_var(each)}
    names = [name for node in collect(func.body, (Call, StringImm)) for name in _named(node)]
    return max(names, key=lambda name: _rank(name, kinds), default=None)


def _rank(name: str, kinds: set[str]) -> tuple[bool, bool, int, str]:
    return name.startswith("wgmma"), bool(kinds & set(name.split("."))), len(name), name


def _named(node: Call | StringImm) -> list[str]:
    if isinstance(node, StringImm):
        return [*_PTX.findall(str(node.value)), *map("".join, _IN_TEXT.findall(str(node.value)))]
    name = str(getattr(node.op, "name", ""))
    if name in _TIR_MMA:
        return [name.removeprefix("tirx.")]
    if name in _INTRINSICS:
        intrinsic = str(llvm_get_intrinsic_name(int(node.args[0])))
        return [intrinsic] if _LLVM.match(intrinsic) else []
    return []
