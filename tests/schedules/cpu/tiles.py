"""What tests of kernels by tile registers (AMX) share: operands, the CPU, and calls in the place of instructions."""

from __future__ import annotations

import ctypes
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm

from relaxc.schedules.hardware import Cpu, cpu_of
from relaxc.schedules.ir.statements import with_code
from relaxc.schedules.template import Schedule
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.target import resolve, to_tvm

__all__ = ["BRAIN", "HERE", "INSTRUCTIONS", "MIXED", "SIGNED", "compiled", "emulated", "loaded", "random", "row"]

BRAIN, MIXED, SIGNED = ("bfloat16", "bfloat16"), ("uint8", "int8"), ("int8", "int8")
INSTRUCTIONS = {BRAIN: "tdpbf16ps", MIXED: "tdpbusd", SIGNED: "tdpbssd"}
HERE = json.dumps({"kind": "llvm", "mcpu": "x86-64-v4", "features": ["amx-tile", "amx-bf16", "amx-int8"], "cores": 2})
"""Of AVX-512 without more: what is emulated must run on any such machine."""


def row(name: str) -> Cpu:
    """Return the row of a target."""
    return cpu_of(to_tvm(resolve(name)))


def emulated(code: str, body: Any) -> Any:
    """Be `with_code`, with each tile instruction a call of `emulated_tiles.c`."""
    names = ("llvm.x86.tile", "emulated_tile"), ("llvm.x86.tdp", "emulated_tdp"), ("llvm.x86.ld", "emulated_ld")
    for before, after in (*names, (" immarg", "")):
        code = code.replace(before, after)
    return with_code(code, body)


def compiled(rule: Any, func: Any) -> Any:
    """Return what a template makes of a PrimFunc, compiled for `HERE`."""
    target = to_tvm(resolve(HERE))
    made = rule.apply(func, target)
    assert isinstance(made, Schedule), made
    return tvm.compile(made.func, target, tir_pipeline=pipeline.NAME)


def loaded(module: Any, library: Path, emulator: Any) -> Any:
    """Return a module by way of a library, so that it finds instructions; its workspaces are guarded by the emulator's.

    What takes no more than 1 KiB is on the stack, and is not.
    """
    module.export_library(str(library))
    found = tvm.runtime.load_module(str(library))
    names = {"Alloc": emulator.guarded_workspace, "Free": emulator.kept_workspace}
    for name, function in names.items():
        with suppress(ValueError):  # without workspaces it does not ask for them
            held = ctypes.c_void_p.in_dll(ctypes.CDLL(str(library)), f"__TVMBackend{name}Workspace")
            held.value = ctypes.cast(function, ctypes.c_void_p).value
    return found


def random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return numbers of the dtype, all of its range where it is of bytes."""
    if dtype == "bfloat16":
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
