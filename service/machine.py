"""What this machine is: its CPU's features and cores, its GPU, and what it lacks to run a target."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from service.request import TargetSpec

__all__ = [
    "FAMILIES",
    "Cache",
    "Cpu",
    "Gpu",
    "caches",
    "cpu",
    "family_of",
    "gpu",
    "host_features",
    "known_features",
    "missing_features",
    "model_name",
    "parse_cpuinfo",
]

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
    "asimdrdm": "rdm",
    "atomics": "lse",
    "crc32": "crc",
}
_ARM_SAME_NAME = frozenset({"aes", "bf16", "i8mm", "sha2", "sve", "sve2"})

# The micro-architecture of a CPU, by maker: the first whose features are all there.
FAMILIES = (
    ("GenuineIntel", "graniterapids", {"amx-fp16", "avx512fp16"}),
    ("GenuineIntel", "sapphirerapids", {"avx512fp16", "avx512bf16"}),
    ("GenuineIntel", "icelake-server", {"avx512vbmi2", "avx512vnni"}),
    ("GenuineIntel", "cascadelake", {"avx512vnni"}),
    ("GenuineIntel", "skylake-avx512", {"avx512f"}),
    ("GenuineIntel", "haswell", {"avx2"}),
    ("AuthenticAMD", "znver5", {"avx512vp2intersect", "avxvnni"}),
    ("AuthenticAMD", "znver4", {"avx512bf16"}),
    ("AuthenticAMD", "znver3", {"avx2", "vaes"}),
    ("AuthenticAMD", "znver2", {"avx2"}),
)

_ARCH_GET_XCOMP_SUPP = 0x1021  # arch_prctl(2)
_SYS_ARCH_PRCTL = 158  # x86-64
_XTILEDATA = 1 << 18

# Runs in a child: a process that initialized CUDA cannot fork a worker that uses it.
_ASK_GPU = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
device, major, minor, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0:
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    cuda.cuDeviceGetName(name, 256, device)
    print(json.dumps([name.value.decode(), major.value, minor.value]))
"""


@dataclass(frozen=True, slots=True)
class Cpu:
    """A CPU: `arch` is x86_64 or aarch64, `features` are LLVM's names, `cores` those this process may use."""

    arch: str
    vendor: str
    features: frozenset[str]
    cores: int


@dataclass(frozen=True, slots=True)
class Cache:
    """A data cache of the first core, which `cores` share; a virtual machine may be told of more than it gets."""

    level: int
    size_bytes: int
    cores: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """A CUDA device: compute capability 9.0 is (9, 0)."""

    name: str
    capability: tuple[int, int]

    @property
    def arch(self) -> str:
        """The CUDA architecture, `sm_90`."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


def parse_cpuinfo(text: str, arch: str) -> tuple[str, frozenset[str]]:
    """The vendor and the LLVM feature names that a /proc/cpuinfo of a machine with `arch` states."""
    flags = set(_field(text, "flags" if arch == "x86_64" else "Features").split())
    renamed, same = (_X86_RENAMED, _X86_SAME_NAME) if arch == "x86_64" else (_ARM_RENAMED, _ARM_SAME_NAME)
    features = (flags & same) | {llvm for linux, llvm in renamed.items() if linux in flags}
    return _field(text, "vendor_id") or _field(text, "CPU implementer"), frozenset(features)


def known_features(arch: str) -> frozenset[str]:
    """Every LLVM feature name that a target for `arch` may state."""
    if arch == "x86_64":
        return _X86_SAME_NAME | frozenset(_X86_RENAMED.values())
    return _ARM_SAME_NAME | frozenset(_ARM_RENAMED.values())


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{name}[ \t]*:[ \t]*(.*)$", text, re.MULTILINE)
    return found.group(1) if found else ""


@lru_cache(maxsize=1)
def cpu() -> Cpu:
    """This machine's CPU. AMX counts only where the kernel would grant its tile state."""
    arch = platform.machine()
    vendor, features = parse_cpuinfo(Path("/proc/cpuinfo").read_text(), arch)
    if not _kernel_grants_amx(arch):
        features = frozenset(f for f in features if not f.startswith("amx"))
    return Cpu(arch, vendor, features, len(os.sched_getaffinity(0)))


@lru_cache(maxsize=1)
def model_name() -> str:
    """What this machine's CPU calls itself; its vendor and architecture where it does not."""
    text = Path("/proc/cpuinfo").read_text()
    return _field(text, "model name") or f"{cpu().vendor} {_field(text, 'CPU part')} {cpu().arch}".strip()


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> list[Cache]:
    """The data caches by level, as Linux tells; none where it does not."""
    found = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size, sharing = (
                (index / name).read_text().strip() for name in ("type", "level", "size", "shared_cpu_list")
            )
        except OSError:
            continue
        parsed = re.fullmatch(r"(\d+)([KM]?)", size)
        if kind != "Instruction" and parsed:
            size_bytes = int(parsed[1]) << {"": 0, "K": 10, "M": 20}[parsed[2]]
            found[int(level)] = Cache(int(level), size_bytes, _count(sharing))
    return [found[level] for level in sorted(found)]


def _count(ranges: str) -> int:
    """How many CPUs `0-3,8` names."""
    ends = [part.partition("-") for part in ranges.split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _kernel_grants_amx(arch: str) -> bool:
    if arch != "x86_64":
        return False
    supported = ctypes.c_uint64(0)
    failed = ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, ctypes.byref(supported))
    return not failed and bool(supported.value & _XTILEDATA)


def host_features() -> frozenset[str]:
    """The LLVM feature names of this CPU, without the plus."""
    return cpu().features


@lru_cache(maxsize=1)
def gpu() -> Gpu | None:
    """This machine's first CUDA device, or None where there is no driver or no device."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    asked = subprocess.run([sys.executable, "-c", _ASK_GPU], capture_output=True, text=True, timeout=60, check=False)
    if not asked.stdout.strip():
        return None
    name, major, minor = json.loads(asked.stdout)
    return Gpu(name, (major, minor))


def family_of(spec: TargetSpec) -> str:
    """The micro-architecture of a CPU target: the family that it is called by, if it can be one, else its mcpu."""
    named = any(name == spec.name and needs <= set(spec.features) for _, name, needs in FAMILIES)
    return spec.name if named else spec.mcpu


def missing_features(spec: TargetSpec) -> list[str]:
    """What this machine lacks to run code compiled for `spec`, as phrases for a person; empty if nothing.

    A cubin for sm_XY runs on devices of the same major capability and at least that minor one.
    """
    missing = _missing_on_cpu(spec if spec.host is None else spec.host)
    if spec.kind == "cuda":
        missing += _missing_on_gpu(spec.arch)
    return missing


def _missing_on_cpu(spec: TargetSpec) -> list[str]:
    arch = spec.triple.partition("-")[0]
    if arch != cpu().arch:
        return [f"a CPU of architecture {arch} (this one is {cpu().arch})"]
    return [f"CPU feature {name}" for name in sorted(set(spec.features) - cpu().features)]


def _missing_on_gpu(arch: str) -> list[str]:
    here = gpu()
    digits = arch.removeprefix("sm_").removesuffix("a")
    wanted = (int(digits[:-1]), int(digits[-1]))
    exactly = arch.endswith("a")
    if here is None:
        return [f"a CUDA device of compute capability {wanted[0]}.{wanted[1]} (there is none)"]
    fits = here.capability == wanted if exactly else here.capability[0] == wanted[0] and here.capability >= wanted
    if fits:
        return []
    found = f"{here.capability[0]}.{here.capability[1]}"
    return [f"a CUDA device of compute capability {wanted[0]}.{wanted[1]} ({here.name} has {found})"]
