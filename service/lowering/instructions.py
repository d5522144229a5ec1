"""What a target multiplies with, an instruction for each pair of operand dtypes; tvm is not imported for it."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from relaxc.service.lowering.target import llvm_attributes
from relaxc.service.request import TargetSpec

__all__ = ["instructions"]

_OPERANDS: tuple[str | tuple[str, str], ...] = (
    *("float64", "float32", "tfloat32", "float16", "bfloat16", "float8_e4m3fn", "int16", "int8", ("uint8", "int8")),
)


def instructions(spec: TargetSpec) -> list[dict[str, Any]]:
    """Return the fastest instruction of the hardware row for each dtype: `Dot`'s fields, and multiply-adds a cycle.

    A CPU has one for each, if only to multiply the widened operands; a GPU has those of its tensor cores.
    """
    from relaxc.schedules.hardware import cpu_of, gpu_of

    if spec.kind == "cuda":
        gpu = gpu_of(SimpleNamespace(attrs={"arch": spec.arch}))
        found = [gpu.dot(dtype) for dtype in _OPERANDS if isinstance(dtype, str)]
    else:
        cpu = cpu_of(SimpleNamespace(attrs=llvm_attributes(spec)))
        found = [cpu.dot(operands) for operands in _OPERANDS if operands not in ("tfloat32", "float8_e4m3fn")]
    return [{**asdict(dot), "operands": list(dot.operands), "multiply_adds": dot.rate} for dot in found if dot]
