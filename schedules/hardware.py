"""Hardware tables: one frozen row a machine kind, which checks its own arithmetic when it is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from schedules.dots import MMA_SM80, MMA_SM90, WGMMA_SM90, Dot, accumulator_of, bits_of, cpu_dots, reference

__all__ = ["CPUS", "GPUS", "Cpu", "Dot", "Gpu", "cpu_of", "gpu_of"]

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Cpu:
    """What a template needs to know of a CPU core and its caches; sizes in bytes, L1 and L2 a core's own.

    `l3_bytes_per_cycle` and `memory_bytes_per_cycle` are what one core reads while the others read too. `features` are
    the target's, LLVM's names; `dot_rates` are how many instructions of a feature start in a cycle, and their latency,
    where these do not keep up with float32 multiply-adds.
    """

    name: str
    vector_bits: int
    vector_registers: int
    fma_per_cycle: int
    fma_latency: int
    loads_per_cycle: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    l3_bytes_per_cycle: float = 8.0
    memory_bytes_per_cycle: float = 4.0
    features: frozenset[str] = frozenset()
    dot_rates: tuple[tuple[str, float, int], ...] = ()

    def __post_init__(self) -> None:
        assert self.vector_bits in (128, 256, 512), self
        assert self.vector_registers in (16, 32), self
        assert self.l1_bytes < self.l2_bytes <= self.l3_bytes, self
        assert self.fma_in_flight < self.vector_registers, self
        assert self.cores >= 1, self
        assert 0 < self.memory_bytes_per_cycle <= self.l3_bytes_per_cycle <= 64, self
        assert all(dot.fits_cpu(self.vector_bits) and dot.in_flight < 32 for dot in self.dots), self

    @property
    def dots(self) -> tuple[Dot, ...]:
        """What it multiplies with, by the target's features, float32 first."""
        return cpu_dots(self.features, self.vector_bits, (self.fma_per_cycle, self.fma_latency), self.dot_rates)

    def dot(self, operands: str | tuple[str, str], accumulate: str | None = None) -> Dot:
        """Return what multiplies these operands fastest: an instruction for them, or the widening multiply-add.

        One dtype stands for both operands. Sums are in float32, or int32, unless `accumulate` says otherwise. Raise
        ValueError for what is no dtype.
        """
        plain = self.reference(operands, accumulate)
        wanted = (plain.operands, plain.accumulate)
        fitting = (dot for dot in self.dots if (dot.operands, dot.accumulate) == wanted)
        return max((plain, *fitting), key=lambda dot: dot.rate)

    def reference(self, operands: str | tuple[str, str], accumulate: str | None = None) -> Dot:
        """Return the widening multiply-add for these operands, which every CPU has; `dot` says what they mean."""
        pair = (operands, operands) if isinstance(operands, str) else operands
        total = accumulate or accumulator_of(max(pair, key=bits_of))
        fma = (self.fma_per_cycle, self.fma_latency)
        return reference(pair, total, self.vector_bits, fma, bool(self.features & {"fma", "neon"}))

    @property
    def fma_in_flight(self) -> int:
        """Independent accumulators that hide the latency of a multiply-add."""
        return self.fma_per_cycle * self.fma_latency

    def lanes(self, dtype: str | int) -> int:
        """Elements of a dtype, or of so many bits, in one vector."""
        return max(1, self.vector_bits // (bits_of(dtype) if isinstance(dtype, str) else dtype))


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a template needs to know of a CUDA device: an SM's resources, and what its tensor cores multiply.

    `mma` is the shape of its largest fp16 instruction.
    """

    name: str
    arch: str
    sms: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    registers_per_sm: int
    threads_per_sm: int
    l2_bytes: int
    mma: tuple[int, int, int]
    warp: int = 32
    dots: tuple[Dot, ...] = ()

    def __post_init__(self) -> None:
        m, n, k = self.mma
        assert m % 8 == n % 8 == k % 8 == 0, self
        assert self.shared_bytes_per_block < self.shared_bytes_per_sm, self
        assert self.threads_per_sm % self.warp == 0, self
        # The accumulator of one mma is spread over the registers of one warp (or, for wgmma, four).
        assert (m * n) % self.warp == 0, self
        assert not self.dots or self.mma in {(dot.m, dot.n, dot.k) for dot in self.dots}, self

    def dot(self, operands: str, accumulate: str | None = None) -> Dot | None:
        """Return the instruction that multiplies these operands fastest, None where there is none: no dtype is widened.

        float32 is rounded to tfloat32 by whoever asks for that: it is a dtype of its own here.
        """
        total = accumulate or accumulator_of(operands)
        fitting = [dot for dot in self.dots if (dot.operands, dot.accumulate) == ((operands, operands), total)]
        return max(fitting, key=lambda dot: (dot.rate, dot.multiply_adds), default=None)


# Sources: Intel 64 optimization manual 248966-050; AMD 57647 (Zen 4 software optimization guide); Arm
# Cortex-A72 and Neoverse N1 optimization guides. Levels without a maker take the smallest of their class.
# 8 and 4 bytes a cycle from L3 and memory: 30 and 15 GB/s at 3.8 GHz, measured on Sapphire Rapids.
CPUS: dict[str, Cpu] = {
    "x86-64": Cpu("x86-64", 128, 16, 1, 5, 1, 32 * KIB, 256 * KIB, 4096 * KIB, 4),
    "x86-64-v2": Cpu("x86-64-v2", 128, 16, 1, 5, 1, 32 * KIB, 256 * KIB, 4096 * KIB, 4),
    "x86-64-v3": Cpu("x86-64-v3", 256, 16, 2, 5, 2, 32 * KIB, 256 * KIB, 8192 * KIB, 4),
    "x86-64-v4": Cpu("x86-64-v4", 512, 32, 2, 4, 2, 32 * KIB, 1024 * KIB, 16384 * KIB, 4),
    "sapphirerapids": Cpu(
        *("sapphirerapids", 512, 32, 2, 4, 2, 48 * KIB, 2048 * KIB, 16384 * KIB, 4),
        dot_rates=(("avx512bf16", 0.5, 8),),  # measured: VDPBF16PS starts every second cycle
    ),
    "znver4": Cpu("znver4", 512, 32, 1, 4, 1, 32 * KIB, 1024 * KIB, 32768 * KIB, 4),
    "aarch64": Cpu("aarch64", 128, 32, 2, 4, 2, 64 * KIB, 512 * KIB, 4096 * KIB, 4),
}

# Sources: NVIDIA A100 and H100 whitepapers; CUDA C programming guide, table of compute capabilities.
GPUS: dict[str, Gpu] = {
    "sm_80": Gpu(
        *("A100", "sm_80", 108, 164 * KIB, 163 * KIB, 65536, 2048, 40960 * KIB, (16, 8, 16)),
        dots=MMA_SM80,
    ),
    "sm_90": Gpu(
        *("H100", "sm_90", 132, 228 * KIB, 227 * KIB, 65536, 2048, 51200 * KIB, (64, 256, 16)),
        dots=(*MMA_SM90, *WGMMA_SM90),
    ),
}


def cpu_of(target: Any) -> Cpu:
    """The row of a `tvm.target.Target` for a CPU, with the target's own vector width and cores."""
    attrs = target.attrs
    features = {str(name) for name in attrs.get("mattr", ())}
    if str(attrs.get("mtriple", "")).startswith("aarch64"):
        row = CPUS["aarch64"]
    else:
        row = CPUS.get(str(attrs.get("mcpu", "")), CPUS["x86-64"])
        if "+amx-tile" in features and row.name == "x86-64-v4":
            row = CPUS["sapphirerapids"]  # no older core has AMX
        if "-prefer-256-bit" not in features and row.vector_bits == 512:
            row = replace(row, vector_bits=256)
        if "+avx" in features and row.vector_bits == 128:
            row = replace(row, vector_bits=256)
    enabled = frozenset(name[1:] for name in features if name.startswith("+"))
    return replace(row, cores=int(attrs.get("num-cores", row.cores)), features=enabled)


def gpu_of(target: Any) -> Gpu:
    """The row of a `tvm.target.Target` for a CUDA device; a later minor version takes its family's row."""
    arch = str(target.attrs["arch"]).removesuffix("a")
    at_or_below = [name for name in GPUS if int(name[3:]) <= int(arch[3:])]
    return GPUS[max(at_or_below, key=lambda name: int(name[3:]))] if at_or_below else GPUS["sm_80"]
