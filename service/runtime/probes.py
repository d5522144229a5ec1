"""Loops that reach what a CPU can do at most: multiply-adds of each dtype, bytes read, and bytes copied."""
# mypy: ignore-errors
# TVMScript's buffer annotations are values, which no type checker takes.

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes
from tvm.script import tirx as T

__all__ = ["CHAINS", "Instruction", "build", "copy", "fastest", "fma", "products", "read"]

CHAINS = 12
"""Independent sums: at least FMA latency x FMAs a cycle, which is 4 x 2 on current cores, and few enough for 16
registers with the operands."""

_DOT_CHAINS = 24
"""Of an instruction that adds several products: 6 cycles of latency x 2 a cycle on Zen 5 are 12 already, which a late
start of any leaves short. There are 32 registers where there is such an instruction."""

_TILE_CHAINS = 6
"""Of tile registers (AMX), of which there are eight: 52 cycles of latency at one a 16 cycles are 4."""

_TILE_ROWS, _TILE_BYTES = 16, 1024


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
    """One of CPUs with `feature` that adds `k` products to each sum of a vector, or of a tile; `element` is LLVM's
    operand type.
    """

    feature: str
    intrinsic: str
    element: str
    sums: str
    k: int

    @property
    def in_tiles(self) -> bool:
        """Whether its operands are tile registers."""
        return self.feature.startswith("amx")

    @property
    def chains(self) -> int:
        """Independent sums that hide its latency."""
        return _TILE_CHAINS if self.in_tiles else _DOT_CHAINS

    def lanes(self, of_vector: int) -> int:
        """Return the sums of one instruction; vectors have `of_vector`."""
        return _TILE_BYTES // 4 if self.in_tiles else of_vector

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

    def loop(self, name: str, repeats: int) -> str:
        """Return LLVM IR of `name(words, sums)`: `repeats` of it on each of `chains` tiles of sums.

        Intel 64 manual, volume 1, 18.2: a configuration is the palette, from byte 16 the bytes of a row in 16 bits
        each, from byte 48 the rows.
        """
        row_bytes = _TILE_BYTES // _TILE_ROWS
        content = [1, *bytes(15), *[row_bytes, 0] * 8, *bytes(16), *[_TILE_ROWS] * 8, *bytes(8)]
        held = ", ".join(f"i8 {byte}" for byte in content)
        tiles = range(self.chains)
        places = [f"  %sums{i} = getelementptr i8, ptr %sums, i64 {i * _TILE_BYTES}" for i in tiles]
        begin, end = (
            [f"  call void @llvm.x86.tile{moved}64(i8 {i}, ptr %sums{i}, i64 {row_bytes})" for i in tiles]
            for moved in ("loadd", "stored")
        )
        left, right = self.chains, self.chains + 1
        loads = [f"  call void @llvm.x86.tileloadd64(i8 {i}, ptr %words, i64 {row_bytes})" for i in (left, right)]
        steps = [f"  call void @{self.intrinsic}(i8 {i}, i8 {left}, i8 {right})" for i in tiles]
        lines = [
            f"@{name}_tiles = private unnamed_addr constant [{len(content)} x i8] [{held}], align 64",
            "declare void @llvm.x86.ldtilecfg(ptr)",
            "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
            "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
            "declare void @llvm.x86.tilerelease()",
            f"declare void @{self.intrinsic}(i8 immarg, i8 immarg, i8 immarg)",
            f"define i32 @{name}(ptr %words, ptr %sums) {{",
            *("entry:", f"  call void @llvm.x86.ldtilecfg(ptr @{name}_tiles)", *places, *begin, *loads),
            *("  br label %step", "step:", "  %k = phi i64 [ 0, %entry ], [ %next, %step ]", *steps),
            *("  %next = add i64 %k, 1", f"  %more = icmp ult i64 %next, {repeats}"),
            "  br i1 %more, label %step, label %end",
            *("end:", *end, "  call void @llvm.x86.tilerelease()", "  ret i32 0", "}"),
        ]
        return "\n".join(lines)


_INSTRUCTIONS = {
    "bfloat16": (
        Instruction("amx-bf16", "llvm.x86.tdpbf16ps", "bfloat", "float32", 32),
        Instruction("avx512bf16", "llvm.x86.avx512bf16.dpbf16ps", "bfloat", "float32", 2),
    ),
    "uint8": (
        Instruction("amx-int8", "llvm.x86.tdpbusd", "i8", "int32", 64),
        Instruction("avx512vnni", "llvm.x86.avx512.vpdpbusd", "i8", "int32", 4),
    ),
}


def fastest(features: Container[str]) -> dict[str, Instruction]:
    """Return what CPUs with these features multiply narrow operands by, by the dtype of the left one."""
    if "avx512f" not in features:
        return {}
    fitting = {name: [each for each in every if each.feature in features] for name, every in _INSTRUCTIONS.items()}
    return {name: found[0] for name, found in fitting.items() if found}


def products(threads: int, lanes: int, repeats: int, by: Instruction) -> tirx.PrimFunc:
    """Compute s = dot(s, c, c), `repeats` times in registers, for `by.chains` sums s of each thread; then out = s.

    `lanes` are those of one sum.
    """
    total, row = by.sums, by.chains * lanes
    dtype, name = f"{total}x{lanes}", f"relaxc_probe_{by.element}"

    @T.prim_func
    def tiles_kernel(scale: T.Buffer((lanes,), "int32"), out: T.Buffer((threads * row,), total)):
        for t in T.parallel(threads):
            T.evaluate(T.call_extern("int32", name, T.address_of(scale[0]), T.address_of(out[t * row])))

    @T.prim_func
    def products_kernel(scale: T.Buffer((lanes,), "int32"), out: T.Buffer((threads * row,), total)):
        for t in T.parallel(threads):
            sums = T.alloc_local((row,), total, annotations=_ON_STACK)
            for a in T.unroll(by.chains):
                sums[T.ramp(a * lanes, 1, lanes)] = out[T.ramp(t * row + a * lanes, 1, lanes)]
            for _r in T.serial(repeats):
                for a in T.unroll(by.chains):
                    sums[T.ramp(a * lanes, 1, lanes)] = T.call_pure_extern(
                        name, sums[T.ramp(a * lanes, 1, lanes)], scale[T.ramp(0, 1, lanes)], dtype=dtype
                    )
            for a in T.unroll(by.chains):
                out[T.ramp(t * row + a * lanes, 1, lanes)] = sums[T.ramp(a * lanes, 1, lanes)]

    kernel, code = (tiles_kernel, by.loop(name, repeats)) if by.in_tiles else (products_kernel, by.code(name, lanes))
    return kernel.with_body(tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", code, kernel.body))


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
