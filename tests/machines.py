"""Machines as Linux describes them: /proc/cpuinfo and sysfs trees with the flags, ids and caches of real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relaxc.service import processor

__all__ = ["MACHINES", "UNKNOWN", "Machine"]

KIB, MIB = 1 << 10, 1 << 20

_BASE = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx "
    "pdpe1gb rdtscp lm constant_tsc rep_good nopl nonstop_tsc cpuid aperfmperf pni pclmulqdq monitor ssse3 fma cx16 "
    "sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm 3dnowprefetch fsgsbase bmi1 avx2 smep bmi2 erms "
    "rdseed adx smap clflushopt xsaveopt xsavec xgetbv1 xsaves"
)
_SANDY_BRIDGE = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx "
    "pdpe1gb rdtscp lm constant_tsc pni pclmulqdq ssse3 cx16 sse4_1 sse4_2 x2apic popcnt aes xsave avx lahf_lm xsaveopt"
)
_AVX512 = "avx512f avx512dq avx512cd avx512bw avx512vl"
_ICE = f"{_AVX512} avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq"
_ICE_CRYPTO = "sha_ni gfni vaes vpclmulqdq rdpid umip pku ospke fsrm"
_AMX = "avx_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8 cldemote movdiri movdir64b serialize"
_AMD = "mmxext fxsr_opt extd_apicid svm extapic cr8_legacy sse4a misalignsse osvw ibs topoext sha_ni clzero"
_N1 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
_V1 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 "
    "sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng"
)
_V2 = f"{_V1} sb sve2 sveaes svepmull svebitperm svesha3 flagm2 frint bti"
_M1 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 "
    "asimddp sha512 asimdfhm dit uscat ilrcpc flagm sb paca pacg dcpodp flagm2 frint"
)


@dataclass(frozen=True)
class Cluster:
    """`cores` alike, of `threads` hardware threads each: L1 a core, one L2 for `l2_cores`, one L3 for `l3_cores`.

    Siblings are numbered as AMD and Intel do: all first threads of the machine, then all second ones.
    """

    cores: int
    caches: tuple[int, ...]
    threads: int = 1
    l2_cores: int = 1
    l3_cores: int = 0
    capacity: int | None = None
    part: int = 0


@dataclass(frozen=True)
class Machine:
    """A machine and what `auto` has to make of it."""

    maker: str
    model: tuple[int, int]
    title: str
    flags: str
    clusters: tuple[Cluster, ...]
    family: str
    cores: int
    caches: tuple[int, int, int]
    vector_bits: int
    rate: int
    """Of float32 multiply-adds, a cycle."""

    @property
    def arch(self) -> str:
        return "x86_64" if not self.maker.startswith("0x") else "aarch64"

    @property
    def cpus(self) -> int:
        """Logical CPUs."""
        return sum(cluster.cores * cluster.threads for cluster in self.clusters)

    def read(self, root: Path, allowed: Sequence[int] | None = None) -> processor.Cpu:
        """Return what is read from this machine's files, written below `root`."""
        self.write(root)
        return processor.read(root, self.arch, range(self.cpus) if allowed is None else allowed)

    def write(self, root: Path) -> None:
        """Write /proc/cpuinfo and the parts of /sys/devices/system/cpu that say what a CPU is."""
        (root / "proc").mkdir()
        blocks: dict[int, str] = {}
        firsts = sum(cluster.cores for cluster in self.clusters)
        before = 0
        for package, cluster in enumerate(self.clusters):
            for core in range(cluster.cores):
                own = _threads(before + core, firsts, cluster)
                for cpu in own:
                    blocks[cpu] = self._block(cpu, core, cluster)
                    _write_cpu(root, cpu, core, package, own, before, firsts, cluster)
            before += cluster.cores
        (root / "proc/cpuinfo").write_text("\n".join(blocks[cpu] for cpu in sorted(blocks)))

    def _block(self, cpu: int, core: int, cluster: Cluster) -> str:
        if self.arch == "aarch64":
            return (
                f"processor\t: {cpu}\nBogoMIPS\t: 48.00\nFeatures\t: {self.flags}\nCPU implementer\t: {self.maker}\n"
                f"CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: {cluster.part or self.model[1]:#05x}\n"
                "CPU revision\t: 1\n"
            )
        family, model = self.model
        return (
            f"processor\t: {cpu}\nvendor_id\t: {self.maker}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
            f"model name\t: {self.title}\nstepping\t: 1\ncpu MHz\t\t: 2000.000\ncore id\t\t: {core}\n"
            f"flags\t\t: {self.flags}\nvmx flags\t: vnmi avx512_fp16_none\nbugs\t\t: spectre_v1\nbogomips\t: 4000.00\n"
        )


def _threads(core: int, firsts: int, cluster: Cluster) -> list[int]:
    return [core + firsts * thread for thread in range(cluster.threads)]


def _write_cpu(
    root: Path, cpu: int, core: int, package: int, own: list[int], before: int, firsts: int, cluster: Cluster
) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}"
    (folder / "topology").mkdir(parents=True)
    (folder / "topology/thread_siblings_list").write_text(_list(own))
    (folder / "topology/core_id").write_text(f"{core}\n")
    (folder / "topology/physical_package_id").write_text(f"{package}\n")
    if cluster.capacity is not None:
        (folder / "cpu_capacity").write_text(f"{cluster.capacity}\n")
    sharing = (1, cluster.l2_cores, cluster.l3_cores or cluster.cores)
    index = 0
    for level, (size, cores) in enumerate(zip(cluster.caches, sharing, strict=False), 1):
        start = before + core // cores * cores
        shared = [cpu for one in range(start, start + cores) for cpu in _threads(one, firsts, cluster)]
        for kind in ("Data", "Instruction") if level == 1 else ("Unified",):
            place = folder / f"cache/index{index}"
            place.mkdir(parents=True)
            values = {"type": kind, "level": level, "size": f"{size // KIB}K", "shared_cpu_list": _list(shared).strip()}
            for name, value in values.items():
                (place / name).write_text(f"{value}\n")
            index += 1


def _list(cpus: list[int]) -> str:
    return ",".join(map(str, sorted(cpus))) + "\n"


def _intel(model: int, title: str, flags: str, cluster: Cluster, *right: object) -> Machine:
    return Machine("GenuineIntel", (6, model), f"Intel(R) {title}", f"{_BASE} {flags}", (cluster,), *right)  # type: ignore[arg-type]


def _amd(family: int, model: int, title: str, flags: str, cluster: Cluster, *right: object) -> Machine:
    flags = f"{_BASE} {_AMD} {flags}"
    return Machine("AuthenticAMD", (family, model), f"AMD {title}", flags, (cluster,), *right)  # type: ignore[arg-type]


def _arm(maker: str, part: int, flags: str, clusters: tuple[Cluster, ...], *right: object) -> Machine:
    return Machine(maker, (0, part), "", flags, clusters, *right)  # type: ignore[arg-type]


MACHINES = {
    "Skylake-SP: Xeon Platinum 8168": _intel(
        *(85, "Xeon(R) Platinum 8168 CPU @ 2.70GHz", f"{_AVX512} clwb pku ospke"),
        Cluster(24, (32 * KIB, MIB, 33792 * KIB), threads=2),
        *("skylake-avx512", 24, (32 * KIB, MIB, 33792 * KIB), 512, 32),
    ),
    "Cascade Lake: Xeon Gold 6248": _intel(
        *(85, "Xeon(R) Gold 6248 CPU @ 2.50GHz", f"{_AVX512} clwb pku ospke avx512_vnni"),
        Cluster(20, (32 * KIB, MIB, 28160 * KIB), threads=2),
        *("cascadelake", 20, (32 * KIB, MIB, 28160 * KIB), 512, 32),
    ),
    "Ice Lake: Xeon Platinum 8375C": _intel(
        *(106, "Xeon(R) Platinum 8375C CPU @ 2.90GHz", f"{_ICE} {_ICE_CRYPTO}"),
        Cluster(32, (48 * KIB, 1280 * KIB, 55296 * KIB), threads=2),
        *("icelake-server", 32, (48 * KIB, 1280 * KIB, 55296 * KIB), 512, 32),
    ),
    "Tiger Lake: Core i7-1185G7": _intel(
        *(140, "Core(TM) i7-1185G7 @ 3.00GHz", f"{_ICE} {_ICE_CRYPTO} avx512_vp2intersect"),
        Cluster(4, (48 * KIB, 1280 * KIB, 12288 * KIB), threads=2),
        *("icelake-client", 4, (48 * KIB, 1280 * KIB, 12288 * KIB), 512, 16),
    ),
    "Sapphire Rapids: Xeon Platinum 8480+": _intel(
        *(143, "Xeon(R) Platinum 8480+", f"{_ICE} {_ICE_CRYPTO} {_AMX}"),
        Cluster(56, (48 * KIB, 2 * MIB, 107520 * KIB), threads=2),
        *("sapphirerapids", 56, (48 * KIB, 2 * MIB, 107520 * KIB), 512, 32),
    ),
    # As clouds show it: two cores with all of the host's L3, called a Rocket Lake.
    "Sapphire Rapids: a virtual machine": _intel(
        *(167, "Xeon(R) Processor", f"{_ICE} {_ICE_CRYPTO} {_AMX} hypervisor"),
        Cluster(2, (48 * KIB, 2 * MIB, 107520 * KIB)),
        *("sapphirerapids", 2, (48 * KIB, 2 * MIB, 107520 * KIB), 512, 32),
    ),
    # QEMU's own cache descriptions: 4 MiB of L2, which no Cascade Lake has.
    "Cascade Lake: QEMU": _intel(
        *(85, "Xeon Processor (Cascadelake)", f"{_AVX512} avx512_vnni hypervisor"),
        Cluster(4, (32 * KIB, 4 * MIB, 16 * MIB)),
        *("cascadelake", 4, (32 * KIB, MIB, 16 * MIB), 512, 32),
    ),
    "Alder Lake: Core i9-12900K": Machine(
        *("GenuineIntel", (6, 151), "12th Gen Intel(R) Core(TM) i9-12900K"),
        f"{_BASE} {_ICE_CRYPTO} avx_vnni serialize movdiri movdir64b",
        (
            Cluster(8, (48 * KIB, 1280 * KIB, 30 * MIB), threads=2),
            Cluster(8, (32 * KIB, 2 * MIB, 30 * MIB), l2_cores=4),
        ),
        *("alderlake", 8, (48 * KIB, 1280 * KIB, 30 * MIB), 256, 16),
    ),
    "Haswell: Xeon E5-2680 v3": _intel(
        *(63, "Xeon(R) CPU E5-2680 v3 @ 2.50GHz", ""),
        Cluster(12, (32 * KIB, 256 * KIB, 30 * MIB), threads=2),
        *("haswell", 12, (32 * KIB, 256 * KIB, 30 * MIB), 256, 16),
    ),
    "Zen 2: EPYC 7742": _amd(
        *(23, 49, "EPYC 7742 64-Core Processor", "clwb rdpid"),
        Cluster(64, (32 * KIB, 512 * KIB, 16 * MIB), threads=2, l3_cores=4),
        *("znver2", 64, (32 * KIB, 512 * KIB, 16 * MIB), 256, 16),
    ),
    "Zen 3: Ryzen 9 5950X": _amd(
        *(25, 33, "Ryzen 9 5950X 16-Core Processor", "clwb rdpid umip pku ospke vaes vpclmulqdq"),
        Cluster(16, (32 * KIB, 512 * KIB, 32 * MIB), threads=2, l3_cores=8),
        *("znver3", 16, (32 * KIB, 512 * KIB, 32 * MIB), 256, 16),
    ),
    "Zen 4: EPYC 9654": _amd(
        *(25, 17, "EPYC 9654 96-Core Processor", f"{_ICE} clwb rdpid umip pku ospke gfni vaes vpclmulqdq avx512_bf16"),
        Cluster(96, (32 * KIB, MIB, 32 * MIB), threads=2, l3_cores=8),
        *("znver4", 96, (32 * KIB, MIB, 32 * MIB), 512, 16),
    ),
    "Zen 5: EPYC 9755": _amd(
        *(26, 2, "EPYC 9755 128-Core Processor"),
        f"{_ICE} clwb rdpid gfni vaes vpclmulqdq avx512_bf16 avx_vnni avx512_vp2intersect movdiri movdir64b",
        Cluster(128, (48 * KIB, MIB, 32 * MIB), threads=2, l3_cores=8),
        *("znver5", 128, (48 * KIB, MIB, 32 * MIB), 512, 32),
    ),
    "Zen 5 mobile: Ryzen AI 9 HX 370": _amd(
        *(26, 36, "Ryzen AI 9 HX 370 w/ Radeon 890M"),
        f"{_ICE} clwb rdpid gfni vaes vpclmulqdq avx512_bf16 avx_vnni avx512_vp2intersect movdiri movdir64b",
        Cluster(4, (48 * KIB, MIB, 16 * MIB), threads=2),
        *("znver5-mobile", 4, (48 * KIB, MIB, 16 * MIB), 512, 16),
    ),
    "Neoverse N1: Graviton 2": _arm(
        *("0x41", 0xD0C, _N1, (Cluster(64, (64 * KIB, MIB, 32 * MIB)),)),
        *("neoverse-n1", 64, (64 * KIB, MIB, 32 * MIB), 128, 8),
    ),
    "Neoverse V1: Graviton 3": _arm(
        *("0x41", 0xD40, _V1, (Cluster(64, (64 * KIB, MIB, 32 * MIB)),)),
        *("neoverse-v1", 64, (64 * KIB, MIB, 32 * MIB), 128, 16),
    ),
    "Neoverse V2: Graviton 4": _arm(
        *("0x41", 0xD4F, _V2, (Cluster(96, (64 * KIB, 2 * MIB, 36 * MIB)),)),
        *("neoverse-v2", 96, (64 * KIB, 2 * MIB, 36 * MIB), 128, 16),
    ),
    "Neoverse V2: Grace": _arm(
        *("0x41", 0xD4F, _V2, (Cluster(72, (64 * KIB, MIB, 116736 * KIB)),)),
        *("neoverse-v2", 72, (64 * KIB, MIB, 116736 * KIB), 128, 16),
    ),
    # Asahi Linux: the efficient cores come first, and their capacity is what their clock and pipes make of it.
    "Apple M1": _arm(
        *("0x61", 0x23, _M1),
        (
            Cluster(4, (64 * KIB, 4 * MIB), l2_cores=4, capacity=459, part=0x22),
            Cluster(4, (128 * KIB, 12 * MIB), l2_cores=4, capacity=1024, part=0x23),
        ),
        *("apple-m1", 4, (128 * KIB, 3 * MIB, 12 * MIB), 128, 16),
    ),
    "Apple M2": _arm(
        *("0x61", 0x33, f"{_M1} ecv bf16 i8mm"),
        (
            Cluster(4, (64 * KIB, 4 * MIB), l2_cores=4, capacity=478, part=0x32),
            Cluster(4, (128 * KIB, 16 * MIB), l2_cores=4, capacity=1024, part=0x33),
        ),
        *("apple-m2", 4, (128 * KIB, 4 * MIB, 16 * MIB), 128, 16),
    ),
}
"""By name, each with its family, cores, L1, L2 and L3 of a core, vector bits and multiply-adds a cycle."""

UNKNOWN = {
    "a maker that nobody knows": Machine(
        *("CentaurHauls", (7, 59), "ZHAOXIN KaiXian KX-7000", _BASE),
        (Cluster(8, (32 * KIB, 512 * KIB, 32 * MIB)),),
        *("x86-64-v3", 8, (32 * KIB, 512 * KIB, 32 * MIB), 256, 16),
    ),
    "a later Intel": _intel(
        *(240, "Xeon(R) 9999P", f"{_ICE} {_ICE_CRYPTO} {_AMX} amx_fp16"),
        Cluster(8, (48 * KIB, 2 * MIB, 64 * MIB), threads=2),
        *("graniterapids", 8, (48 * KIB, 2 * MIB, 64 * MIB), 512, 32),
    ),
    "without AVX2": Machine(
        *("GenuineIntel", (6, 45), "Intel(R) Xeon(R) CPU E5-2690", _SANDY_BRIDGE),
        (Cluster(8, (32 * KIB, 256 * KIB, 20 * MIB), threads=2),),
        *("x86-64-v2", 8, (32 * KIB, 256 * KIB, 20 * MIB), 256, 8),
    ),
    "a later Arm": _arm(
        *("0x41", 0xD84, _V2, (Cluster(16, (64 * KIB, 3 * MIB, 48 * MIB)),)),
        *("aarch64-native", 16, (64 * KIB, 3 * MIB, 48 * MIB), 128, 8),
    ),
}
"""Machines without a hardware row: `family` is what they are taken for."""
