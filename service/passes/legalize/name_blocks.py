"""Blocks are named by what they compute, and not by the variables of the model that they read."""

from __future__ import annotations

import re
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, s_tir, tirx

from relaxc.schedules.ir.blocks import block_names

__all__ = ["NameBlocks"]

_REDUCED = r"((?:_red(?:_temp)?)+(?:_\d+)?)"
"""What TVM's reductions put behind the name of their operand."""


@tvm.transform.module_pass(opt_level=0, name="NameBlocks")
class NameBlocks:
    """`lv105_red → x0_red`: a reduction is called after the position of its operand.

    TVM calls it after the operand, whose number says how much of the model comes before it, layouts included. Records
    and traces know a kernel by the names of its blocks, among others: they would be of one place in one model.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with these blocks renamed; the same object if there are none."""
        functions = [(var, func) for var, func in module.functions_items() if isinstance(func, tirx.PrimFunc)]
        changed = {var: _renamed(func, names) for var, func in functions if (names := _names(func))}
        if not changed:
            return module
        module = module.clone()
        for var, func in changed.items():
            module.update_func(var, func)
        return module


def _names(func: tirx.PrimFunc) -> dict[str, str]:
    """The new name of each block that has the name of a parameter."""
    operands: dict[str, int] = {}
    for position, param in enumerate(func.params):
        operands.setdefault(str(param.name), position)
    found = {}
    for block in block_names(func):
        for operand, position in operands.items():
            if match := re.fullmatch(re.escape(operand) + _REDUCED, block):
                found[block] = f"x{position}{match[1]}"
    return {old: new for old, new in found.items() if old != new}


def _renamed(func: tirx.PrimFunc, names: dict[str, str]) -> Any:
    def rename(block: Any) -> Any:
        if block.name_hint not in names:
            return block
        return s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            names[block.name_hint],
            block.body,
            init=block.init,
            alloc_buffers=block.alloc_buffers,
            match_buffers=block.match_buffers,
            annotations=block.annotations,
        )

    return tvm_ffi.structural_map(func, (s_tir.SBlock, rename))
