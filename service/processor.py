"""What Linux tells of a CPU: its micro-architecture by model and features, its cores, and the caches of each."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "FAMILIES",
    "MOST_THREADS",
    "Cache",
    "Cpu",
    "caches_in",
    "known_features",
    "microarchitecture",
    "parse_cpuinfo",
    "read",
]

MOST_THREADS = 1024
"""Of a session: each of them is a thread of the system."""

# Linux's name of a flag → LLVM's name of the feature, where these differ. Only features that LLVM may use in
# code it was not asked to use them in are listed here and in _SAME_NAME: a target needs no others.
_X86_RENAMED = {
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "lahf_lm": "sahf",
    "pclmulqdq": "pclmul",
    "sha_ni": "sha",
    "avx_vnni": "avxvnni",
    "avx512_bf16": "avx512bf16",
    "avx512_bitalg": "avx512bitalg",
    "avx512_fp16": "avx512fp16",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vp2intersect": "avx512vp2intersect",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16",
}
_X86_SAME_NAME = frozenset(
    {
        *("adx", "aes", "avx", "avx2", "bmi2", "cx16", "f16c", "fma", "gfni", "movbe", "popcnt", "sse4a", "ssse3"),
        *("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512ifma", "avx512vbmi", "avx512vl"),
        *("vaes", "vpclmulqdq"),
    }
)
_ARM_RENAMED = {
    "asimd": "neon",
    "fphp": "fullfp16",
    "asimddp": "dotprod",
    "asimdfhm": "fp16fml",
    "asimdrdm": "rdm",
    "atomics": "lse",
    "crc32": "crc",
}
_ARM_SAME_NAME = frozenset({"aes", "bf16", "i8mm", "sha2", "sve", "sve2"})

# The micro-architectures that have a hardware row, newest first: maker, LLVM's name, features that all of them have.
# Emerald Rapids is a Sapphire Rapids, and Broadwell a Haswell; `znver5-mobile`, which has vector units of 256 bits, and
# the clients' Ice Lake with one 512-bit multiply-add are told from their like by the model alone.
FAMILIES: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("GenuineIntel", "graniterapids", frozenset({"amx-fp16", "avx512fp16"})),
    ("GenuineIntel", "sapphirerapids", frozenset({"avx512fp16", "avx512bf16"})),
    ("GenuineIntel", "icelake-server", frozenset({"avx512vbmi2", "avx512vnni"})),
    ("GenuineIntel", "icelake-client", frozenset({"avx512vbmi2", "avx512vnni"})),
    ("GenuineIntel", "cascadelake", frozenset({"avx512vnni"})),
    ("GenuineIntel", "skylake-avx512", frozenset({"avx512f"})),
    ("GenuineIntel", "alderlake", frozenset({"avx2", "avxvnni"})),
    ("GenuineIntel", "haswell", frozenset({"avx2"})),
    ("GenuineIntel", "skylake", frozenset({"avx2"})),
    ("AuthenticAMD", "znver5", frozenset({"avx512f", "avxvnni"})),
    ("AuthenticAMD", "znver5-mobile", frozenset({"avx512f", "avxvnni"})),
    ("AuthenticAMD", "znver4", frozenset({"avx512f"})),
    ("AuthenticAMD", "znver3", frozenset({"avx2", "vaes"})),
    ("AuthenticAMD", "znver2", frozenset({"avx2"})),
    ("AuthenticAMD", "znver1", frozenset({"avx2"})),
    ("HygonGenuine", "znver1", frozenset({"avx2"})),
    *(("0x41", name, frozenset({"neon"})) for name in ("neoverse-n1", "neoverse-n2", "neoverse-v1", "neoverse-v2")),
    ("0x41", "cortex-a72", frozenset({"neon"})),
    *(("0x61", name, frozenset({"neon"})) for name in ("apple-m1", "apple-m2")),
    ("0x6d", "neoverse-n2", frozenset({"neon"})),
)

# (maker, family) → models, as in Linux's arch/x86/include/asm/intel-family.h and arch/x86/kernel/cpu/amd.c; for Arm
# (implementer, 0) → parts, as in arch/arm64/include/asm/cputype.h. A virtual machine on an Apple CPU has part 0.
_MODELS: dict[tuple[str, int], tuple[tuple[str, Collection[int]], ...]] = {
    ("GenuineIntel", 6): (
        ("haswell", {60, 63, 69, 70, 61, 71, 79, 86}),
        ("skylake", {78, 94, 142, 158, 165, 166}),
        ("skylake-avx512", {85}),
        ("icelake-server", {106, 108}),
        ("icelake-client", {125, 126, 140, 141, 167}),
        ("sapphirerapids", {143, 207}),
        ("graniterapids", {173, 174}),
        ("alderlake", {151, 154, 170, 172, 181, 183, 186, 191, 197, 198}),
    ),
    ("AuthenticAMD", 23): (("znver1", range(0x30)), ("znver2", range(0x30, 0x100))),
    ("AuthenticAMD", 25): (
        ("znver3", {*range(0x10), *range(0x20, 0x60)}),
        ("znver4", {*range(0x10, 0x20), *range(0x60, 0xB0)}),
    ),
    ("AuthenticAMD", 26): (
        ("znver5", {*range(0x20), *range(0x40, 0x50)}),
        ("znver5-mobile", {*range(0x20, 0x40), *range(0x60, 0x80)}),
    ),
    ("HygonGenuine", 24): (("znver1", range(0x100)),),
    ("0x41", 0): (
        ("neoverse-n1", {0xD0C}),
        ("neoverse-n2", {0xD49}),
        ("neoverse-v1", {0xD40}),
        ("neoverse-v2", {0xD4F}),
        ("cortex-a72", {0xD08}),
    ),
    ("0x61", 0): (("apple-m1", {0, *range(0x20, 0x2A)}), ("apple-m2", range(0x30, 0x3A))),
    ("0x6d", 0): (("neoverse-n2", {0xD49}),),
}


@dataclass(frozen=True, slots=True)
class Cache:
    """A data cache of a core, which `cores` logical CPUs share; a virtual machine may be told of more than it gets."""

    level: int
    size_bytes: int
    cores: int


@dataclass(frozen=True, slots=True)
class Cpu:
    """A CPU: `arch` is x86_64 or aarch64, `features` are LLVM's names, `cores` those worth using of the allowed ones.

    A core counts once, whatever its hardware threads; where cores differ, the slow ones count if work in equal parts
    ends sooner with them. `model` is (family, model) on x86 and (0, part) on Arm, `title` what it calls itself.
    `caches` are a core's bytes of L1 and L2 (its share of what several cores have) and all of the last level, or ().
    """

    arch: str
    vendor: str
    features: frozenset[str]
    cores: int
    model: tuple[int, int] = (0, -1)
    title: str = ""
    caches: tuple[int, ...] = ()


def parse_cpuinfo(text: str, arch: str) -> tuple[str, frozenset[str]]:
    """Return the vendor and the LLVM feature names that a /proc/cpuinfo of a machine with `arch` states."""
    flags = set(_field(text, "flags" if arch == "x86_64" else "Features").split())
    renamed, same = (_X86_RENAMED, _X86_SAME_NAME) if arch == "x86_64" else (_ARM_RENAMED, _ARM_SAME_NAME)
    features = (flags & same) | {llvm for linux, llvm in renamed.items() if linux in flags}
    return _field(text, "vendor_id") or _field(text, "CPU implementer"), frozenset(features)


def known_features(arch: str) -> frozenset[str]:
    """Return every LLVM feature name that a target for `arch` may state."""
    if arch == "x86_64":
        return _X86_SAME_NAME | frozenset(_X86_RENAMED.values())
    return _ARM_SAME_NAME | frozenset(_ARM_RENAMED.values())


def microarchitecture(cpu: Cpu) -> tuple[str, bool]:
    """Return the name of a CPU's family, '' if none fits, and whether its model is a known one.

    The model decides, unless the features are a newer family's: a virtual machine may call itself what it likes. Where
    the model is unknown, an x86 is taken for the newest family that its features allow.
    """
    fitting = {name: needs for vendor, name, needs in FAMILIES if vendor == cpu.vendor and needs <= cpu.features}
    family, model = cpu.model
    named = next((name for name, models in _MODELS.get((cpu.vendor, family), ()) if model in models), "")
    if cpu.arch != "x86_64":
        return (named, True) if named in fitting else ("", False)
    newest = next(iter(fitting), "")
    if named in fitting and fitting[named] == fitting[newest]:
        return named, True
    return newest, bool(named)


def read(root: Path, arch: str, allowed: Collection[int]) -> Cpu:
    """Return the CPU that /proc/cpuinfo and /sys below `root` describe, of which the CPUs `allowed` may be used."""
    text = (root / "proc/cpuinfo").read_text()
    vendor, features = parse_cpuinfo(text, arch)
    cores = _cores(root / "sys/devices/system/cpu", allowed)
    own = _block(text, cores[0].cpu)
    model = (_number(own, "cpu family"), _number(own, "model")) if arch == "x86_64" else (0, _number(own, "CPU part"))
    title = _field(own, "model name") or f"{vendor} {_field(own, 'CPU part')} {arch}".strip()
    return Cpu(arch, vendor, features, _worth_using(cores), model, title, cores[0].caches)


def caches_in(folder: Path) -> list[Cache]:
    """Return the data caches below a CPU's `cache` folder by level, as Linux tells; none where it does not."""
    found = {}
    for index in sorted(folder.glob("index*")):
        kind, level, size, sharing = (_read(index / name) for name in ("type", "level", "size", "shared_cpu_list"))
        parsed = re.fullmatch(r"(\d+)([KM]?)", size)
        if kind and kind != "Instruction" and level.isdecimal() and parsed:
            size_bytes = int(parsed[1]) << {"": 0, "K": 10, "M": 20}[parsed[2]]
            found[int(level)] = Cache(int(level), size_bytes, max(1, _count(sharing)))
    return [found[level] for level in sorted(found)]


@dataclass(frozen=True, slots=True)
class _Core:
    """One core: the first allowed CPU of its hardware threads, its speed against the others, and its caches."""

    cpu: int
    capacity: int
    caches: tuple[int, ...]


def _cores(folder: Path, allowed: Collection[int]) -> list[_Core]:
    """The allowed cores, the fastest first."""
    found: dict[str, _Core] = {}
    for cpu in sorted(allowed):
        own = folder / f"cpu{cpu}"
        threads = _read(own / "topology/core_cpus_list") or _read(own / "topology/thread_siblings_list") or str(cpu)
        if threads not in found:
            capacity = _read(own / "cpu_capacity")
            caches = _of_one(caches_in(own / "cache"), max(1, _count(threads)))
            found[threads] = _Core(cpu, int(capacity) if capacity.isdecimal() else 0, caches)
    # x86 states no capacity before Linux 6.12. The small cores of a hybrid have the smaller L1, and half the FMA units.
    largest = max(core.caches[:1] for core in found.values())
    rated = (
        _Core(core.cpu, core.capacity or (1024 if core.caches[:1] == largest else 512), core.caches)
        for core in found.values()
    )
    return sorted(rated, key=lambda core: -core.capacity)


def _of_one(caches: list[Cache], threads: int) -> tuple[int, ...]:
    """What one core has of L1, L2 and the last level; nothing where L1 or L2 is not told of."""
    sizes = {cache.level: (cache.size_bytes, cache.size_bytes // max(1, cache.cores // threads)) for cache in caches}
    if not {1, 2} <= sizes.keys():
        return ()
    l1, l2 = sizes[1][1], sizes[2][1]
    return (l1, l2, max(l2, sizes[max(sizes)][0])) if l1 < l2 else ()


def _worth_using(cores: list[_Core]) -> int:
    """How many of the cores do work in equal parts soonest: all of them, or the fast ones alone."""
    return max(range(1, len(cores) + 1), key=lambda count: (count * cores[count - 1].capacity, -count))


def _block(text: str, cpu: int) -> str:
    """The lines of /proc/cpuinfo about one CPU; all where it has none for it."""
    blocks = re.split(r"\n\s*\n", text)
    return next((block for block in blocks if _field(block, "processor") == str(cpu)), text)


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{name}[ \t]*:[ \t]*(.*)$", text, re.MULTILINE)
    return found.group(1) if found else ""


def _number(text: str, name: str) -> int:
    try:
        return int(_field(text, name), 0)
    except ValueError:
        return -1


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _count(ranges: str) -> int:
    """How many CPUs `0-3,8` names."""
    ends = [part.partition("-") for part in ranges.split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)
