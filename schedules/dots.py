"""What a machine multiplies with: one frozen row an instruction, with its shape, its rate and its latency."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import log2

__all__ = ["MMA_SM80", "MMA_SM90", "WGMMA_SM90", "Dot", "accumulator_of", "bits_of", "cpu_dots", "reference"]

_TILE_BITS = 16 * 64 * 8
"""An AMX tile: 16 rows of 64 bytes."""


def bits_of(dtype: str) -> int:
    """Return the bits of one element: 32 of `float32`, 8 of `bool`. Raise ValueError for what is no dtype."""
    found = re.fullmatch(r"(?:bfloat|float|int|uint|tfloat)(\d+)(?:_\w+)?", dtype)
    if dtype != "bool" and found is None:
        raise ValueError(f"{dtype!r} is no dtype")
    return int(found[1]) if found else 8


def accumulator_of(dtype: str) -> str:
    """Return the dtype that products of `dtype` are summed in where nothing else is asked for."""
    if "float" in dtype:
        return "float64" if dtype == "float64" else "float32"
    return "int64" if bits_of(dtype) > 32 else "int32"


@dataclass(frozen=True, slots=True)
class Dot:
    """One instruction, `c[m, n] += a[m, k] * b[k, n]`: `operands` are the dtypes of a and b, `accumulate` is c's.

    `throughput` is how many a core (on a GPU: an SM) starts a cycle, `latency` the cycles from one to the next that
    adds to the same c. `intrinsic` is LLVM's name of it, or PTX's on a GPU; it is empty where the operands are widened
    to `accumulate`, multiplied and added, and then the template counts the widening. An operand of a vector instruction
    with one row (m = 1) is k elements of a, repeated for each of the n columns.
    """

    operands: tuple[str, str]
    accumulate: str
    m: int
    n: int
    k: int
    intrinsic: str
    throughput: float
    latency: int

    def __post_init__(self) -> None:
        assert min(self.m, self.n, self.k, self.latency) >= 1 and self.throughput > 0, self
        assert bits_of(self.accumulate) >= max(map(bits_of, self.operands)), self
        floats = {"float" in dtype for dtype in (*self.operands, self.accumulate)}
        assert len(floats) == 1, self  # integers and floats do not mix
        assert log2(self.k) % 1 == 0, self

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one instruction."""
        return self.m * self.n * self.k

    @property
    def rate(self) -> float:
        """Multiply-adds a cycle."""
        return self.multiply_adds * self.throughput

    @property
    def in_flight(self) -> int:
        """Independent accumulators that hide the latency."""
        return max(1, round(self.throughput * self.latency))

    @property
    def accumulator_bits(self) -> int:
        """Bits of c."""
        return self.m * self.n * bits_of(self.accumulate)

    @property
    def in_tiles(self) -> bool:
        """Whether its operands and c are in tile registers (AMX), which hold what no vector does."""
        return self.accumulator_bits == _TILE_BITS

    def fits_cpu(self, vector_bits: int) -> bool:
        """Return whether c fills one vector of at most `vector_bits`, or a tile, and b no more than that."""
        whole = _TILE_BITS if self.in_tiles else vector_bits
        return self.accumulator_bits <= whole and max(self.m, self.n) * self.k * bits_of(self.operands[1]) <= whole


def reference(operands: tuple[str, str], accumulate: str, vector_bits: int, fma: tuple[float, int], fused: bool) -> Dot:
    """Return the multiply-add of the accumulating dtype, which every CPU has: the operands are widened to it first.

    `fma` are how many of float32 start in a cycle, and their latency. VPMULLD is two operations of 5 cycles
    (uops.info), and Arm's MLA starts on half of the pipes; sums in 16-bit floats are converted forth and back.
    """
    lanes = max(1, vector_bits // bits_of(accumulate))
    throughput, latency = fma
    if accumulate in ("float32", "float64"):
        same = operands == (accumulate, accumulate)
        return Dot(operands, accumulate, 1, lanes, 1, "llvm.fma" if same and fused else "", throughput, latency)
    return Dot(operands, accumulate, 1, lanes, 1, "", throughput / 2, latency + 7)


@dataclass(frozen=True, slots=True)
class _Family:
    """Instructions of one CPU feature: operand pairs with the name of each, `per_fma` as many a cycle as multiply-adds.

    `bits` are the vectors that it comes for, `shape` (m, k); n fills the vector.
    """

    feature: str
    intrinsics: tuple[tuple[tuple[str, str], str], ...]
    accumulate: str
    shape: tuple[int, int]
    bits: tuple[int, ...]
    latency: int
    per_fma: float = 1.0

    def dots(self, vector_bits: int, fma_per_cycle: float, rates: dict[str, tuple[float, int]]) -> Iterable[Dot]:
        bits = max((bits for bits in self.bits if bits <= vector_bits), default=None)
        if bits is None:
            return
        throughput, latency = rates.get(self.feature, (self.per_fma * fma_per_cycle, self.latency))
        m, k = self.shape
        n = bits // bits_of(self.accumulate) // m
        for operands, name in self.intrinsics:
            yield Dot(operands, self.accumulate, m, n, k, name.format(bits=bits), throughput, latency)


def _both(dtype: str) -> tuple[str, str]:
    return dtype, dtype


_VECTORS = (128, 256, 512)
_HALF, _BRAIN, _SIGNED, _UNSIGNED, _MIXED = (
    *(_both("float16"), _both("bfloat16"), _both("int8"), _both("uint8"), ("uint8", "int8")),
)

# x86: as many start as float32 multiply-adds (uops.info: VPDPBUSD, VFMADD231PH on Ice Lake and Alder Lake, VDPBF16PS on
# Zen 4); a row says where that is not so. AVX-VNNI has LLVM's names of the AVX-512 instructions.
# Arm: software optimization guides of Neoverse N1, V1 and V2, as in LLVM's AArch64SchedNeoverse*.td.
_FAMILIES = (
    _Family("avx512fp16", ((_HALF, "llvm.fma"),), "float16", (1, 1), (512, 256, 128), 4),
    _Family("avx512bf16", ((_BRAIN, "llvm.x86.avx512bf16.dpbf16ps.{bits}"),), "float32", (1, 2), _VECTORS, 6),
    _Family("avx512vnni", ((_MIXED, "llvm.x86.avx512.vpdpbusd.{bits}"),), "int32", (1, 4), _VECTORS, 5),
    _Family("avx512vnni", ((_both("int16"), "llvm.x86.avx512.vpdpwssd.{bits}"),), "int32", (1, 2), _VECTORS, 5),
    _Family("avxvnni", ((_MIXED, "llvm.x86.avx512.vpdpbusd.{bits}"),), "int32", (1, 4), (128, 256), 5),
    _Family("avxvnni", ((_both("int16"), "llvm.x86.avx512.vpdpwssd.{bits}"),), "int32", (1, 2), (128, 256), 5),
    _Family("fullfp16", ((_HALF, "llvm.fma"),), "float16", (1, 1), (128,), 4),
    _Family("fp16fml", ((_HALF, "llvm.aarch64.neon.fmlal"),), "float32", (1, 1), (128,), 4),
    _Family(
        "dotprod",
        ((_SIGNED, "llvm.aarch64.neon.sdot"), (_UNSIGNED, "llvm.aarch64.neon.udot")),
        *("int32", (1, 4), (128,), 3),
    ),
    _Family("i8mm", ((_MIXED, "llvm.aarch64.neon.usdot"),), "int32", (1, 4), (128,), 3),
    _Family(
        "i8mm",
        (
            (_SIGNED, "llvm.aarch64.neon.smmla"),
            (_UNSIGNED, "llvm.aarch64.neon.ummla"),
            (_MIXED, "llvm.aarch64.neon.usmmla"),
        ),
        *("int32", (2, 8), (128,), 3),
    ),
    _Family("bf16", ((_BRAIN, "llvm.aarch64.neon.bfdot"),), "float32", (1, 2), (128,), 4),
    _Family("bf16", ((_BRAIN, "llvm.aarch64.neon.bfmmla"),), "float32", (2, 4), (128,), 5),
)

# One a 16 cycles, latency 52: Intel 64 optimization manual 248966-050, 20.5; 16 measured on Sapphire Rapids.
_AMX = {
    "amx-bf16": ((_BRAIN, "float32", 32, "llvm.x86.tdpbf16ps"),),
    "amx-fp16": ((_HALF, "float32", 32, "llvm.x86.tdpfp16ps"),),
    "amx-int8": (
        (_SIGNED, "int32", 64, "llvm.x86.tdpbssd"),
        (_MIXED, "int32", 64, "llvm.x86.tdpbusd"),
        (("int8", "uint8"), "int32", 64, "llvm.x86.tdpbsud"),
        (_UNSIGNED, "int32", 64, "llvm.x86.tdpbuud"),
    ),
}

_PMADDWD = {512: "llvm.x86.avx512.pmaddw.d.512", 256: "llvm.x86.avx2.pmadd.wd", 128: "llvm.x86.sse2.pmadd.wd"}
_NEEDS = {512: "avx512bw", 256: "avx2", 128: "sse3"}  # SSE2 is in every x86-64, which SSE3 here stands for


@lru_cache
def cpu_dots(
    features: frozenset[str],
    vector_bits: int,
    fma: tuple[float, int],
    rates: tuple[tuple[str, float, int], ...] = (),
) -> tuple[Dot, ...]:
    """Return what a CPU with these LLVM features multiplies with, vectors of `vector_bits` at most.

    `fma` are the float32 multiply-adds that start in a cycle, and their latency; `rates` the throughput and latency of
    features that do not keep up with these.
    """
    fused = "fma" in features or "neon" in features
    exceptions = {feature: (throughput, latency) for feature, throughput, latency in rates}
    found = [reference(_both(dtype), dtype, vector_bits, fma, fused) for dtype in ("float32", "float64")]
    if "neon" not in features:
        bits = next((bits for bits in (512, 256) if bits <= vector_bits and _NEEDS[bits] in features), 128)
        found.append(Dot(_both("int16"), "int32", 1, bits // 32, 2, _PMADDWD[bits], fma[0] / 2, 6))  # with its addition
    for family in _FAMILIES:
        if family.feature in features:
            found += family.dots(vector_bits, fma[0], exceptions)
    for feature, rows in _AMX.items():
        if {feature, "amx-tile"} <= features:
            throughput, latency = exceptions.get(feature, (1 / 16, 52))
            found += [Dot(pair, total, 16, 16, k, name, throughput, latency) for pair, total, k, name in rows]
    return tuple(dict.fromkeys(found))


# PTX ISA 8.5, 9.7.14 (mma) and 9.7.15 (wgmma); `throughput` from the dense peak of the whitepapers: an SM of an A100
# does 1024 fp16 multiply-adds a cycle, of an H100 2048, and mma reaches 5/8 of that there (Luo et al.,
# 'Benchmarking and Dissecting the Nvidia Hopper GPU Architecture', 2024; the latencies of mma are from there, too).
_MMA_NAMES = {
    "float16": ("float32", 16, "f32.f16.f16.f32"),
    "bfloat16": ("float32", 16, "f32.bf16.bf16.f32"),
    "tfloat32": ("float32", 8, "f32.tf32.tf32.f32"),
    "int8": ("int32", 32, "s32.s8.s8.s32"),
    "uint8": ("int32", 32, "s32.u8.u8.s32"),
}
_WGMMA_NAMES = {
    "float16": ("float32", 16, "f32.f16.f16"),
    "bfloat16": ("float32", 16, "f32.bf16.bf16"),
    "tfloat32": ("float32", 8, "f32.tf32.tf32"),
    "float8_e4m3fn": ("float32", 32, "f32.e4m3.e4m3"),
    "float8_e5m2": ("float32", 32, "f32.e5m2.e5m2"),
    "int8": ("int32", 32, "s32.s8.s8"),
    "uint8": ("int32", 32, "s32.u8.u8"),
}


def _mma(throughput: float, latency: int) -> tuple[Dot, ...]:
    return tuple(
        Dot(_both(dtype), total, 16, 8, k, f"mma.sync.aligned.m16n8k{k}.row.col.{types}", throughput, latency)
        for dtype, (total, k, types) in _MMA_NAMES.items()
    )


def _wgmma() -> tuple[Dot, ...]:
    """An instruction of 64xNxk takes N/2 cycles, at least 16: shorter ones wait for shared memory."""
    return tuple(
        Dot(_both(dtype), total, 64, n, k, f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types}", 2 / n, max(32, n // 2))
        for dtype, (total, k, types) in _WGMMA_NAMES.items()
        for n in (64, 128, 256)
    )


MMA_SM80 = _mma(0.5, 25)
MMA_SM90 = _mma(0.625, 33)
WGMMA_SM90 = _wgmma()
