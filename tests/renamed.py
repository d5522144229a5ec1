"""A module under other names of functions, blocks, buffers and variables: what a compile makes of it may not differ."""

from __future__ import annotations

import random
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

__all__ = ["renamed"]


def renamed(module: tvm.IRModule, seed: int) -> tvm.IRModule:
    """Return the module with random names for everything that has one, but for `main`, its inputs, and free sizes."""
    rng = random.Random(seed)
    inputs = set(module["main"].params)
    globals_: dict[Any, Any] = {}
    for var, func in module.functions_items():
        globals_[var] = var if var.name_hint == "main" else _global(rng, func)
    taken: dict[Any, Any] = {}

    def variable(var: Any) -> Any:
        if var in inputs:
            return var
        if var not in taken:
            taken[var] = type(var)(_name(rng), var.ty, var.span)
        return taken[var]

    def buffer(var: Any) -> Any:
        if not tirx.is_buffer_var(var):
            return var
        if var not in taken:
            taken[var] = tirx.Var(_name(rng), var.ty)
        return taken[var]

    def block(each: Any) -> Any:
        return s_tir.SBlock(
            each.iter_vars,
            each.reads,
            each.writes,
            each.name_hint if each.name_hint == "root" else _name(rng),
            each.body,
            init=each.init,
            alloc_buffers=each.alloc_buffers,
            match_buffers=each.match_buffers,
            annotations=each.annotations,
        )

    functions = {}
    for var, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            func = tvm_ffi.structural_map(func, (s_tir.SBlock, block))
            func = tvm_ffi.structural_map(func, (tirx.Var, buffer))
        else:
            func = tvm_ffi.structural_map(func, (tvm.ir.GlobalVar, lambda each: globals_.get(each, each)))
            func = tvm_ffi.structural_map(func, (relax.Var, variable), (relax.DataflowVar, variable))
        functions[globals_[var]] = func
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def _global(rng: random.Random, func: Any) -> Any:
    var = tvm.ir.GlobalVar(_name(rng))
    relax.expr._update_type(var, func.ty)
    return var


def _name(rng: random.Random) -> str:
    return "n" + "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(10))
