"""Three loops that reach what a CPU can do at most: fused multiply-adds, bytes read, and bytes copied."""
# mypy: ignore-errors
# TVMScript's buffer annotations are values, which no type checker takes.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes
from tvm.script import tirx as T

__all__ = ["CHAINS", "build", "copy", "fma", "read"]

CHAINS = 12
"""Independent sums: at least FMA latency x FMAs a cycle, which is 4 x 2 on current cores, and few enough for 16
registers with the operands."""


_ON_STACK = {"disable_lower_builtin": True}
"""Keeps TVM from allocating the sums by a call, so that LLVM makes registers of them."""


_PIPELINE = "relaxc_probe"


def _fma(value: Any, scale: Any, dtype: str) -> Any:
    return T.call_llvm_pure_intrin("llvm.fma", value, scale, scale, dtype=dtype)


def fma(threads: int, lanes: int, repeats: int) -> tirx.PrimFunc:
    """Compute s = fma(s, c, c), `repeats` times in registers, for CHAINS vectors s of each thread; then out = s."""
    dtype, row = f"float32x{lanes}", CHAINS * lanes

    @T.prim_func
    def fma_kernel(scale: T.Buffer((lanes,), "float32"), out: T.Buffer((threads * row,), "float32")):
        for t in T.parallel(threads):
            sums = T.alloc_local((row,), annotations=_ON_STACK)
            for a in T.unroll(CHAINS):
                sums[T.ramp(a * lanes, 1, lanes)] = out[T.ramp(t * row + a * lanes, 1, lanes)]
            for _r in T.serial(repeats):
                for a in T.unroll(CHAINS):
                    sums[T.ramp(a * lanes, 1, lanes)] = _fma(
                        sums[T.ramp(a * lanes, 1, lanes)], scale[T.ramp(0, 1, lanes)], dtype
                    )
            for a in T.unroll(CHAINS):
                out[T.ramp(t * row + a * lanes, 1, lanes)] = sums[T.ramp(a * lanes, 1, lanes)]

    return fma_kernel


def read(threads: int, lanes: int, steps: int, repeats: int) -> tirx.PrimFunc:
    """Add up in each thread its own `steps` rows of CHAINS vectors, `repeats` times from start to end, in
    registers.
    """
    row = CHAINS * lanes

    @T.prim_func
    def read_kernel(data: T.Buffer((threads * steps * row,), "float32"), out: T.Buffer((threads * row,), "float32")):
        for t in T.parallel(threads):
            sums = T.alloc_local((row,), annotations=_ON_STACK)
            for a in T.unroll(CHAINS):
                sums[T.ramp(a * lanes, 1, lanes)] = out[T.ramp(t * row + a * lanes, 1, lanes)]
            for _r in T.serial(repeats):
                for i in T.serial(steps):
                    for a in T.unroll(CHAINS):
                        sums[T.ramp(a * lanes, 1, lanes)] = (
                            sums[T.ramp(a * lanes, 1, lanes)]
                            + data[T.ramp((t * steps + i) * row + a * lanes, 1, lanes)]
                        )
            for a in T.unroll(CHAINS):
                out[T.ramp(t * row + a * lanes, 1, lanes)] = sums[T.ramp(a * lanes, 1, lanes)]

    return read_kernel


def copy(threads: int, lanes: int, steps: int, repeats: int) -> tirx.PrimFunc:
    """Compute out = -data, `repeats` times from start to end in each thread: no memcpy, so ordinary stores."""
    row = CHAINS * lanes

    @T.prim_func
    def copy_kernel(
        data: T.Buffer((threads * steps * row,), "float32"), out: T.Buffer((threads * steps * row,), "float32")
    ):
        for t in T.parallel(threads):
            for _r in T.serial(repeats):
                for i in T.serial(steps):
                    for a in T.unroll(CHAINS):
                        out[T.ramp((t * steps + i) * row + a * lanes, 1, lanes)] = (
                            T.broadcast(T.float32(0), lanes) - data[T.ramp((t * steps + i) * row + a * lanes, 1, lanes)]
                        )

    return copy_kernel


def build(functions: Mapping[str, tirx.PrimFunc], target: tvm.target.Target) -> Any:
    """Return the functions compiled. StorageRewrite, which drops the annotation of the sums, is not among the
    passes.
    """
    passes = [
        tirx.transform.FlattenBuffer(),
        tirx.transform.UnrollLoop(),
        tirx.transform.StmtSimplify(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
    ]
    tirx.register_tir_pipeline(
        _PIPELINE, lambda: (tvm.ir.transform.Sequential(passes), finalize_host_passes, finalize_device_passes)
    )
    named = {name: function.with_attr("global_symbol", name) for name, function in functions.items()}
    return tirx.build(tvm.IRModule(named), target=target, pipeline=_PIPELINE)
