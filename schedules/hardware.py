"""Hardware tables: one frozen row a machine kind, which checks its own arithmetic when it is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from relaxc.schedules.dots import MMA_SM80, MMA_SM90, WGMMA_SM90, Dot, accumulator_of, bits_of, cpu_dots, reference
from relaxc.schedules.ir.types import Target

__all__ = ["CPUS", "GPUS", "Costs", "Cpu", "Dot", "Gpu", "cpu_of", "gpu_of", "hardware_of"]

KIB = 1 << 10
_LEAST_SHARED_BYTES = 99 * KIB
"""Of a CTA, what 8.6, 8.9 and 12.0 have."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What no manual says: cycles and efficiencies of the loops that templates make, measured where they run.

    `source` is the machine. A row without its own has those of Sapphire Rapids: they are in cycles, and the work of a
    vector takes about as many on other cores. Bandwidths beside the others' traffic are `Cpu`'s.
    """

    source: str = "Sapphire Rapids, 2 cores at 3.8 GHz"
    gather: float = 3.0
    """To gather one element of a panel from a strided operand."""
    panel_rows: int = 24
    """Rows of a product from which copying its right operand into panels pays: about four tiles of six rows."""
    transform: float = 6.0
    """To transform one vector of a Winograd tile, its way into L2 included: 2 of arithmetic; 5 to 9 measured."""
    tile: float = 20.0
    """To begin and end a register tile."""
    value_copy: float = 0.25
    """To pack the values of attention, in the time of one block of queries."""
    l2_bytes_per_cycle: float = 24.0
    """What a core reads of its L2 beside its arithmetic: half of the 48 measured without."""
    tile_bytes_per_cycle: float = 52.0
    """What loads of tile registers bring of L2: 51 to 54 (a cloud's Xeon at 2.9 GHz, its neighbours quiet)."""
    product_efficiency: float = 0.9
    """Of the peak, in products between packed operands."""
    direct_efficiency: float = 0.8
    """Of the peak, in direct 3x3 convolutions."""

    def __post_init__(self) -> None:
        assert self.source, self
        assert min(self.gather, self.transform, self.tile, self.value_copy) > 0, self
        assert min(self.l2_bytes_per_cycle, self.tile_bytes_per_cycle) > 0, self
        assert self.panel_rows >= 1, self
        assert 0 < self.product_efficiency <= 1 >= self.direct_efficiency > 0, self


@dataclass(frozen=True, slots=True)
class Cpu:
    """What a template needs to know of a CPU core and its caches; sizes in bytes, L1 and L2 a core's own.

    `l3_bytes_per_cycle` and `memory_bytes_per_cycle` are what one core reads while the others read too. `features` are
    the target's, LLVM's names; `dot_rates` are how many instructions of a feature start in a cycle, and their latency,
    where these do not keep up with float32 multiply-adds. `narrow` are the multiply-adds and the loads a cycle with
    vectors of at most 256 bits, where these differ from those of 512; `costs` are measured.
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
    narrow: tuple[int, int] | None = None
    costs: Costs = Costs()

    def __post_init__(self) -> None:
        assert self.vector_bits in (128, 256, 512), self
        assert self.vector_registers in (16, 32), self
        assert self.l1_bytes < self.l2_bytes <= self.l3_bytes, self
        assert self.fma_in_flight < self.vector_registers, self
        assert self.cores >= 1, self
        assert 0 < self.memory_bytes_per_cycle <= self.l3_bytes_per_cycle <= 64, self
        assert self.narrow is None or self.vector_bits == 512, self
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
        return reference(pair, total, self.vector_bits, fma, self.fuses)

    @property
    def fuses(self) -> bool:
        """Whether it multiplies and adds with one rounding."""
        return bool(self.features & {"fma", "neon"})

    @property
    def fma_in_flight(self) -> int:
        """Independent accumulators that hide the latency of a multiply-add."""
        return self.fma_per_cycle * self.fma_latency

    def tile_rows(self, vectors: int) -> int:
        """Return the rows of a register tile of so many vectors that leave registers for vectors and a broadcast."""
        return (self.vector_registers - vectors - 1) // vectors

    def lanes(self, dtype: str | int) -> int:
        """Return the elements of a dtype, or of so many bits, in one vector."""
        return max(1, self.vector_bits // (bits_of(dtype) if isinstance(dtype, str) else dtype))


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a template needs to know of a CUDA device: an SM's resources, and what its tensor cores multiply.

    `mma` is the shape of its largest fp16 instruction.

    The six from `l2_bytes_per_cycle` on are fitted to kernels timed on an H100. Of GEMM: what an SM reads from L2 at a
    time, the barriers of a step of the sum, the latency of a first load, and the exchange of 64x64 partial sums over a
    cluster. Of attention: the scores of a softmax that an SM takes in a cycle (its exponentials alone would be 16).
    `sms_of_fours` is how many SMs clusters of four were seen to fill at once: 28 such clusters ran together, 32 took
    twice as long. Likewise, of products by mma, what an SM reads from L2 by its threads' own copies, and what a warp
    waits for the operands of 16 of the sum (`copied_bytes_per_cycle`, `mma_wait_cycles`).
    `clock_hz` and `memory_bytes_per_second` are the data sheet's, which no kernel exceeds for long. `clusters_alone` is
    what cudaOccupancyMaxActiveClusters says on an H100 of clusters of one CTA, two, up to eight, each alone on its SM.
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
    l2_bytes_per_cycle: float = 52.0
    tile_step_cycles: int = 48
    first_load_cycles: int = 1200
    exchange_cycles: int = 1200
    powers_per_cycle: float = 11.6
    sms_of_fours: int = 112
    copied_bytes_per_cycle: float = 35.0
    mma_wait_cycles: int = 24
    clock_hz: float = 1.83e9
    memory_bytes_per_second: float = 3.35e12
    clusters_alone: tuple[int, ...] = (132, 66, 39, 30, 22, 17, 15, 15)

    def __post_init__(self) -> None:
        m, n, k = self.mma
        assert m % 8 == n % 8 == k % 8 == 0, self
        assert self.shared_bytes_per_block < self.shared_bytes_per_sm, self
        assert self.threads_per_sm % self.warp == 0, self
        # The accumulator of one mma is spread over the registers of one warp (or, for wgmma, four).
        assert (m * n) % self.warp == 0, self
        assert not self.dots or self.mma in {(dot.m, dot.n, dot.k) for dot in self.dots}, self

    @property
    def capability(self) -> int:
        """The compute capability that code for it asks for: 80 for 8.0."""
        return int(self.arch.removeprefix("sm_").removesuffix("a"))

    @property
    def has_clusters(self) -> bool:
        """Whether CTAs may run as clusters."""
        return self.capability >= 90

    @property
    def has_early_launches(self) -> bool:
        """Whether a kernel may begin before the one before it has ended (programmatic dependent launch)."""
        return self.capability >= 90

    @property
    def shared_bytes_of_code(self) -> int:
        """Shared memory that a CTA may take wherever code for it runs, which by PTX are all later devices."""
        is_alone = self.arch.endswith("a") and self.arch in {row.arch for row in GPUS.values()}
        return self.shared_bytes_per_block if is_alone else min(self.shared_bytes_per_block, _LEAST_SHARED_BYTES)

    def clusters(self, size: int) -> int:
        """Return how many clusters of `size` CTAs, each CTA as large as an SM, run at once."""
        return min(self.sms, self.sms_of_fours if size > 2 else self.sms) // size

    def alone(self, size: int) -> int:
        """Return how many clusters of `size` CTAs, of which none shares its SM, were seen to run at once."""
        return min(self.clusters_alone[size - 1], self.sms // size)

    def least_seconds(self, flops: float, size_bytes: float, dtype: str) -> float:
        """Return what a kernel takes at least that reads and writes so many bytes, with operands of `dtype`."""
        peak = self.gflops(dtype) if "float" in dtype or "int" in dtype else 0.0
        return max(flops / peak / 1e9 if peak else 0.0, size_bytes / self.memory_bytes_per_second)

    def gflops(self, dtype: str) -> float:
        """Return 10^9 operations a second with operands of `dtype`, two for a multiply-add; 0 if none takes them."""
        dot = self.dot(dtype)
        return 0.0 if dot is None else round(2 * dot.rate * self.sms * self.clock_hz / 1e9, 1)

    def dot(self, operands: str, accumulate: str | None = None) -> Dot | None:
        """Return the instruction that multiplies these operands fastest, None where there is none: no dtype is widened.

        float32 is rounded to tfloat32 by whoever asks for that: it is a dtype of its own here.
        """
        total = accumulate or accumulator_of(operands)
        fitting = [dot for dot in self.dots if (dot.operands, dot.accumulate) == ((operands, operands), total)]
        return max(fitting, key=lambda dot: (dot.rate, dot.multiply_adds), default=None)


# One row a line: vector bits and registers, multiply-adds a cycle and their latency, loads a cycle, L1, L2, L3, cores.
# L1 and L2 are the most that a core of the family has; a target that was read from a machine has its own, which are no
# more. L3 is that of a small member, or what a cluster of cores has (AMD, Arm); cores are what a tag assumes.
# 8 and 4 bytes a cycle from L3 and memory: 30 and 15 GB/s at 3.8 GHz, measured on Sapphire Rapids.
_INTEL_BF16 = (("avx512bf16", 0.5, 8),)  # VDPBF16PS starts every second cycle: measured on Sapphire Rapids, all widths
CPUS: dict[str, Cpu] = {
    # x86-64 psABI levels and Armv8: without a maker, the smallest of their class.
    "x86-64": Cpu("x86-64", 128, 16, 1, 5, 1, 32 * KIB, 256 * KIB, 4096 * KIB, 4),
    "x86-64-v2": Cpu("x86-64-v2", 128, 16, 1, 5, 1, 32 * KIB, 256 * KIB, 4096 * KIB, 4),
    "x86-64-v3": Cpu("x86-64-v3", 256, 16, 2, 5, 2, 32 * KIB, 256 * KIB, 8192 * KIB, 4),
    "x86-64-v4": Cpu("x86-64-v4", 512, 32, 2, 4, 2, 32 * KIB, 1024 * KIB, 16384 * KIB, 4),
    "aarch64": Cpu("aarch64", 128, 32, 2, 4, 2, 64 * KIB, 512 * KIB, 4096 * KIB, 4),
    # Intel 64 and IA-32 optimization manual 248966-050; latencies and ports: uops.info. The clients' Ice Lake has no
    # second 512-bit unit; some Xeon Silver and Bronze before Ice Lake have none either: their row is too good for them.
    "haswell": Cpu("haswell", 256, 16, 2, 5, 2, 32 * KIB, 256 * KIB, 8192 * KIB, 4),
    "skylake": Cpu("skylake", 256, 16, 2, 4, 2, 32 * KIB, 256 * KIB, 8192 * KIB, 4),
    "alderlake": Cpu("alderlake", 256, 16, 2, 4, 3, 48 * KIB, 3072 * KIB, 24576 * KIB, 4),
    "skylake-avx512": Cpu("skylake-avx512", 512, 32, 2, 4, 2, 32 * KIB, 1024 * KIB, 11264 * KIB, 4),
    "cascadelake": Cpu(
        *("cascadelake", 512, 32, 2, 4, 2, 32 * KIB, 1024 * KIB, 11264 * KIB, 4),
        dot_rates=_INTEL_BF16,  # of Cooper Lake
    ),
    "icelake-client": Cpu(
        *("icelake-client", 512, 32, 1, 4, 2, 48 * KIB, 1280 * KIB, 8192 * KIB, 4),
        narrow=(2, 2),
    ),
    "icelake-server": Cpu("icelake-server", 512, 32, 2, 4, 2, 48 * KIB, 1280 * KIB, 12288 * KIB, 4),
    "sapphirerapids": Cpu(
        *("sapphirerapids", 512, 32, 2, 4, 2, 48 * KIB, 2048 * KIB, 16384 * KIB, 4),
        dot_rates=_INTEL_BF16,
    ),
    "graniterapids": Cpu(
        *("graniterapids", 512, 32, 2, 4, 2, 48 * KIB, 2048 * KIB, 16384 * KIB, 4),
        dot_rates=_INTEL_BF16,
    ),
    # AMD software optimization guides 55723 (Zen), 56305 (Zen 2), 56665 (Zen 3), 57647 (Zen 4), 58455 (Zen 5).
    # Zen halves 256-bit vectors, Zen 4 and the mobile Zen 5 512-bit ones.
    "znver1": Cpu("znver1", 256, 16, 1, 5, 1, 32 * KIB, 512 * KIB, 8192 * KIB, 4),
    "znver2": Cpu("znver2", 256, 16, 2, 5, 2, 32 * KIB, 512 * KIB, 16384 * KIB, 4),
    "znver3": Cpu("znver3", 256, 16, 2, 4, 2, 32 * KIB, 512 * KIB, 32768 * KIB, 4),
    "znver4": Cpu("znver4", 512, 32, 1, 4, 1, 32 * KIB, 1024 * KIB, 32768 * KIB, 4, narrow=(2, 2)),
    "znver5": Cpu("znver5", 512, 32, 2, 4, 2, 48 * KIB, 1024 * KIB, 32768 * KIB, 4),
    "znver5-mobile": Cpu("znver5-mobile", 512, 32, 1, 4, 1, 48 * KIB, 1024 * KIB, 8192 * KIB, 4, narrow=(2, 2)),
    # Arm software optimization guides of Cortex-A72, Neoverse N1, N2, V1 and V2. Vectors are NEON's, not SVE's.
    "cortex-a72": Cpu("cortex-a72", 128, 32, 2, 7, 1, 32 * KIB, 1024 * KIB, 2048 * KIB, 4),
    "neoverse-n1": Cpu("neoverse-n1", 128, 32, 2, 4, 2, 64 * KIB, 1024 * KIB, 32768 * KIB, 4),
    "neoverse-n2": Cpu("neoverse-n2", 128, 32, 2, 4, 3, 64 * KIB, 1024 * KIB, 32768 * KIB, 4),
    "neoverse-v1": Cpu("neoverse-v1", 128, 32, 4, 4, 3, 64 * KIB, 1024 * KIB, 32768 * KIB, 4),
    "neoverse-v2": Cpu("neoverse-v2", 128, 32, 4, 4, 3, 64 * KIB, 2048 * KIB, 36864 * KIB, 4),
    # D. Johnson, 'Apple M1 Firestorm microarchitecture' (2021). L2 is a quarter of the cluster's, L3 all of it: the
    # system's last cache is not told of.
    "apple-m1": Cpu("apple-m1", 128, 32, 4, 4, 3, 128 * KIB, 3072 * KIB, 12288 * KIB, 4),
    "apple-m2": Cpu("apple-m2", 128, 32, 4, 4, 3, 128 * KIB, 4096 * KIB, 16384 * KIB, 4),
}
_LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64")
"""Rows that stand for whatever has their instructions: what a machine says of its caches holds for them."""

# Sources: NVIDIA A100 and H100 whitepapers; CUDA C programming guide, table of compute capabilities.
GPUS: dict[str, Gpu] = {
    "sm_80": Gpu(
        *("A100", "sm_80", 108, 164 * KIB, 163 * KIB, 65536, 2048, 40960 * KIB, (16, 8, 16)),
        dots=MMA_SM80,
        clock_hz=1.41e9,
        memory_bytes_per_second=2.04e12,
    ),
    "sm_90": Gpu(
        *("H100", "sm_90a", 132, 228 * KIB, 227 * KIB, 65536, 2048, 51200 * KIB, (64, 256, 16)),
        dots=(*MMA_SM90, *WGMMA_SM90),
    ),
}


def cpu_of(target: Target) -> Cpu:
    """Return the row of a `tvm.target.Target` for a CPU, with the target's own vector width, cores and caches.

    The row is the one that `model` names, else `mcpu`, else that of the level which the features make.
    """
    attrs = target.attrs
    features = {str(name) for name in attrs.get("mattr", ())}
    named, *caches = str(attrs.get("model", "")).split()[:4] or [""]
    row = CPUS.get(named) or CPUS.get(str(attrs.get("mcpu", ""))) or CPUS[_level(target, features)]
    if row.name == "x86-64-v4" and "+amx-tile" in features:
        row = CPUS["sapphirerapids"]  # no older core has AMX
    row = _with_vectors(row, features)
    if len(caches) == 3:
        row = _with_caches(row, *map(int, caches))
    enabled = frozenset(name[1:] for name in features if name.startswith("+"))
    return replace(row, cores=int(attrs.get("num-cores", row.cores)), features=enabled)


def _level(target: Target, features: set[str]) -> str:
    """The level of a target whose `mcpu` has no row, by the features that LLVM gives it."""
    if str(target.attrs.get("mtriple", "")).startswith("aarch64"):
        return "aarch64"
    if str(target.attrs.get("mcpu", "")) in ("", "generic"):
        return "x86-64"
    from tvm.target import codegen

    implied = {f"+{name}" for name in codegen.llvm_get_cpu_features(target)} | features
    return "x86-64-v4" if "+avx512f" in implied else "x86-64-v3" if "+avx2" in implied else "x86-64-v2"


def _with_vectors(row: Cpu, features: set[str]) -> Cpu:
    """The row for the longest vectors of these features: AVX-512 counts where LLVM is told to use all of it."""
    if "-prefer-256-bit" in features:
        return row if row.vector_bits == 512 else CPUS["x86-64-v4"]
    if row.vector_bits == 512:
        fma, loads = row.narrow or (row.fma_per_cycle, row.loads_per_cycle)
        return replace(row, vector_bits=256, fma_per_cycle=fma, loads_per_cycle=loads, narrow=None)
    if "+avx" in features and row.vector_bits == 128:
        return replace(row, vector_bits=256)
    return row


def _with_caches(row: Cpu, l1: int, l2: int, l3: int) -> Cpu:
    """The row with a machine's caches: a virtual machine may be told of more than any core of the family has."""
    if row.name not in _LEVELS:
        l1, l2 = min(l1, row.l1_bytes), min(l2, row.l2_bytes)
    return replace(row, l1_bytes=l1, l2_bytes=l2, l3_bytes=max(l2, l3)) if l1 < l2 else row


def gpu_of(target: Target) -> Gpu:
    """Return the row of a `tvm.target.Target` for a CUDA device, with its `arch`: that of its family."""
    arch = str(target.attrs["arch"])
    at_or_below = [name for name in GPUS if int(name[3:]) <= int(arch[3:].removesuffix("a"))]
    row = GPUS[max(at_or_below, key=lambda name: int(name[3:]))] if at_or_below else GPUS["sm_80"]
    return replace(row, arch=arch)


def hardware_of(target: Target) -> Any:
    """Return `cpu_of` or `gpu_of`, as the target's kind has it."""
    return gpu_of(target) if str(target.kind.name) == "cuda" else cpu_of(target)
