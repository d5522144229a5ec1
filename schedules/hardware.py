"""Hardware tables: one frozen row a machine kind, which checks its own arithmetic when it is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

__all__ = ["CPUS", "GPUS", "Cpu", "Gpu", "cpu_of", "gpu_of"]

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Cpu:
    """What a template needs to know of a CPU core and its caches; sizes in bytes, L1 and L2 a core's own.

    `l3_bytes_per_cycle` and `memory_bytes_per_cycle` are what one core reads while the others read too.
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

    def __post_init__(self) -> None:
        assert self.vector_bits in (128, 256, 512), self
        assert self.vector_registers in (16, 32), self
        assert self.l1_bytes < self.l2_bytes <= self.l3_bytes, self
        assert self.fma_in_flight < self.vector_registers, self
        assert self.cores >= 1, self
        assert 0 < self.memory_bytes_per_cycle <= self.l3_bytes_per_cycle <= 64, self

    @property
    def fma_in_flight(self) -> int:
        """Independent accumulators that hide the latency of a multiply-add."""
        return self.fma_per_cycle * self.fma_latency

    def lanes(self, dtype_bits: int) -> int:
        """Elements of `dtype_bits` in one vector."""
        return max(1, self.vector_bits // dtype_bits)


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a template needs to know of a CUDA device: an SM's resources, and the tensor core's fp16 shape."""

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

    def __post_init__(self) -> None:
        m, n, k = self.mma
        assert m % 8 == n % 8 == k % 8 == 0, self
        assert self.shared_bytes_per_block < self.shared_bytes_per_sm, self
        assert self.threads_per_sm % self.warp == 0, self
        # The accumulator of one mma is spread over the registers of one warp (or, for wgmma, four).
        assert (m * n) % self.warp == 0, self


# Sources: Intel 64 optimization manual 248966-050; AMD 57647 (Zen 4 software optimization guide); Arm
# Cortex-A72 and Neoverse N1 optimization guides. Levels without a maker take the smallest of their class.
# 8 and 4 bytes a cycle from L3 and memory: 30 and 15 GB/s at 3.8 GHz, measured on Sapphire Rapids.
CPUS: dict[str, Cpu] = {
    "x86-64": Cpu("x86-64", 128, 16, 1, 5, 1, 32 * KIB, 256 * KIB, 4096 * KIB, 4),
    "x86-64-v2": Cpu("x86-64-v2", 128, 16, 1, 5, 1, 32 * KIB, 256 * KIB, 4096 * KIB, 4),
    "x86-64-v3": Cpu("x86-64-v3", 256, 16, 2, 5, 2, 32 * KIB, 256 * KIB, 8192 * KIB, 4),
    "x86-64-v4": Cpu("x86-64-v4", 512, 32, 2, 4, 2, 32 * KIB, 1024 * KIB, 16384 * KIB, 4),
    "sapphirerapids": Cpu("sapphirerapids", 512, 32, 2, 4, 2, 48 * KIB, 2048 * KIB, 16384 * KIB, 4),
    "znver4": Cpu("znver4", 512, 32, 1, 4, 1, 32 * KIB, 1024 * KIB, 32768 * KIB, 4),
    "aarch64": Cpu("aarch64", 128, 32, 2, 4, 2, 64 * KIB, 512 * KIB, 4096 * KIB, 4),
}

# Sources: NVIDIA A100 and H100 whitepapers; CUDA C programming guide, table of compute capabilities.
GPUS: dict[str, Gpu] = {
    "sm_80": Gpu("A100", "sm_80", 108, 164 * KIB, 163 * KIB, 65536, 2048, 40960 * KIB, (16, 8, 16)),
    "sm_90": Gpu("H100", "sm_90", 132, 228 * KIB, 227 * KIB, 65536, 2048, 51200 * KIB, (64, 256, 16)),
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
    return replace(row, cores=int(attrs.get("num-cores", row.cores)))


def gpu_of(target: Any) -> Gpu:
    """The row of a `tvm.target.Target` for a CUDA device; a later minor version takes its family's row."""
    arch = str(target.attrs["arch"]).removesuffix("a")
    at_or_below = [name for name in GPUS if int(name[3:]) <= int(arch[3:])]
    return GPUS[max(at_or_below, key=lambda name: int(name[3:]))] if at_or_below else GPUS["sm_80"]
