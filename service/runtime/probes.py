"""Loops that reach what a CPU can do at most: multiply-adds of each dtype, bytes read, and bytes copied."""
# mypy: ignore-errors
# TVMScript's buffer annotations are values, which no type checker takes.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes
from tvm.script import tirx as T

__all__ = ["CHAINS", "DOT_CHAINS", "INSTRUCTIONS", "Instruction", "build", "copy", "fma", "products", "read"]

CHAINS = 12
"""Independent sums: at least FMA latency x FMAs a cycle, which is 4 x 2 on current cores, and few enough for 16
registers with the operands."""

DOT_CHAINS = 24
"""Of an instruction that adds several products: 6 cycles of latency x 2 a cycle on Zen 5 are 12 already, which a late
start of any leaves short. There are 32 registers where there is such an instruction."""


_ON_STACK = {"disable_lower_builtin": True}
"""Keeps TVM from allocating the sums by a call, so that LLVM makes registers of them."""


_PIPELINE = "relaxc_probe"


def _fma(value: Any, scale: Any, dtype: str) -> Any:
    """One instruction, or two where there is none: of `llvm.fma` LLVM would make calls of the C library's."""
    return T.call_llvm_pure_intrin("llvm.fmuladd", value, scale, scale, dtype=dtype)


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


@dataclass(frozen=True, slots=True)
class Instruction:
    """One of CPUs with `feature` that adds `k` products to each sum of a vector; `element` is LLVM's operand type."""

    feature: str
    intrinsic: str
    element: str
    sums: str
    k: int

    def code(self, name: str, lanes: int) -> str:
        """Return LLVM IR of the function `name`, for `lanes` sums; its operands are words of `k` elements."""
        sums, words = f"<{lanes} x {'float' if self.sums == 'float32' else 'i32'}>", f"<{lanes} x i32>"
        intrinsic, elements = f"@{self.intrinsic}.{32 * lanes}", f"<{self.k * lanes} x {self.element}>"
        return f"""declare {sums} {intrinsic}({sums}, {elements}, {elements})
define {sums} @{name}({sums} %sums, {words} %words) {{
  %given = bitcast {words} %words to {elements}
  %all = call {sums} {intrinsic}({sums} %sums, {elements} %given, {elements} %given)
  ret {sums} %all
}}"""


INSTRUCTIONS = {
    "bfloat16": Instruction("avx512bf16", "llvm.x86.avx512bf16.dpbf16ps", "bfloat", "float32", 2),
    "uint8": Instruction("avx512vnni", "llvm.x86.avx512.vpdpbusd", "i8", "int32", 4),
}
"""What multiplies narrow operands, by the dtype of the left one."""


def products(threads: int, lanes: int, repeats: int, by: Instruction) -> tirx.PrimFunc:
    """Compute s = dot(s, c, c), `repeats` times in registers, for DOT_CHAINS vectors s of each thread; then out = s."""
    total, row = by.sums, DOT_CHAINS * lanes
    dtype, name = f"{total}x{lanes}", f"relaxc_probe_{by.element}"

    @T.prim_func
    def products_kernel(scale: T.Buffer((lanes,), "int32"), out: T.Buffer((threads * row,), total)):
        for t in T.parallel(threads):
            sums = T.alloc_local((row,), total, annotations=_ON_STACK)
            for a in T.unroll(DOT_CHAINS):
                sums[T.ramp(a * lanes, 1, lanes)] = out[T.ramp(t * row + a * lanes, 1, lanes)]
            for _r in T.serial(repeats):
                for a in T.unroll(DOT_CHAINS):
                    sums[T.ramp(a * lanes, 1, lanes)] = T.call_pure_extern(
                        name, sums[T.ramp(a * lanes, 1, lanes)], scale[T.ramp(0, 1, lanes)], dtype=dtype
                    )
            for a in T.unroll(DOT_CHAINS):
                out[T.ramp(t * row + a * lanes, 1, lanes)] = sums[T.ramp(a * lanes, 1, lanes)]

    code = by.code(name, lanes)
    body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", code, products_kernel.body)
    return products_kernel.with_body(body)


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
