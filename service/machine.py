"""What this machine is: its CPU's features and cores, its GPU, packages, and what it lacks to run a target."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from relaxc.service.cgroups import cores_left, memory_left
from relaxc.service.processor import (
    FAMILIES,
    Cache,
    Cpu,
    caches_in,
    known_features,
    microarchitecture,
    parse_cpuinfo,
    read,
)
from relaxc.service.request import TargetSpec

__all__ = [
    "FAMILIES",
    "Cache",
    "Cpu",
    "Gpu",
    "best_arch",
    "best_part",
    "caches",
    "capability_of",
    "cpu",
    "family_of",
    "gpu",
    "host_features",
    "known_features",
    "lacking",
    "memory_bytes",
    "microarchitecture",
    "missing_features",
    "model_name",
    "parse_cpuinfo",
    "processors",
    "version_of",
]

_ARCH_REQ_XCOMP_PERM = 0x1023  # arch_prctl(2)
_SYS_ARCH_PRCTL = 158  # x86-64
_XTILEDATA = 18

# Runs in a child: a process that initialized CUDA cannot fork a worker that uses it.
_ASK_GPU = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
device, major, minor, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
error = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
if error:
    print(json.dumps(error))
else:
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    cuda.cuDeviceGetName(name, 256, device)
    print(json.dumps([name.value.decode(), major.value, minor.value]))
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A CUDA device: compute capability 9.0 is (9, 0)."""

    name: str
    capability: tuple[int, int]

    @property
    def arch(self) -> str:
        """The CUDA architecture, `sm_80`; where the tensor cores need the device's own instructions, `sm_90a`."""
        own = "a" if self.capability == (9, 0) else ""
        return f"sm_{self.capability[0]}{self.capability[1]}{own}"


@lru_cache(maxsize=1)
def cpu() -> Cpu:
    """Return this machine's CPU. Of its features AMX counts only where the kernel grants this process the tile state,
    which is asked for here, and of the cores as many as a container's quota has time for."""
    found = read(Path("/"), platform.machine(), os.sched_getaffinity(0))
    found = replace(found, cores=min(found.cores, cores_left() or found.cores))
    if _kernel_grants_amx(found.arch):
        return found
    return replace(found, features=frozenset(f for f in found.features if not f.startswith("amx")))


def processors() -> int:
    """Return how many of the machine's logical CPUs this process may keep busy, by its affinity and its quota."""
    allowed = len(os.sched_getaffinity(0))
    return min(allowed, cores_left() or allowed)


def memory_bytes() -> int:
    """Return the memory that this process and those beside it may have: the machine's, or a container's limit."""
    import psutil

    total = int(psutil.virtual_memory().total)
    return min(total, memory_left() or total)


def model_name() -> str:
    """Return what this machine's CPU calls itself; its maker, part and architecture where it does not."""
    return cpu().title


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> list[Cache]:
    """Return the data caches of the first CPU by level, as Linux tells; none where it does not."""
    return caches_in(folder)


def _kernel_grants_amx(arch: str) -> bool:
    """Ask for AMX's tile state: all threads of the process have it from then on, and what it forks."""
    if arch != "x86_64":
        return False
    return not ctypes.CDLL(None).syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)


def host_features() -> frozenset[str]:
    """Return the LLVM feature names of this CPU, without the plus."""
    return cpu().features


def gpu() -> Gpu | None:
    """Return this machine's first CUDA device, or None where there is no driver or no device."""
    found = _asked_gpu()
    return found if isinstance(found, Gpu) else None


@lru_cache(maxsize=1)
def _asked_gpu() -> Gpu | str:
    """The first CUDA device, or why there is none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is none"
    asked = subprocess.run([sys.executable, "-c", _ASK_GPU], capture_output=True, text=True, timeout=60, check=False)
    if not asked.stdout.strip():
        return f"the driver is here, and asking it for one ended with {asked.returncode}"
    match json.loads(asked.stdout):
        case [str(name), int(major), int(minor)]:
            return Gpu(name, (major, minor))
        case error:
            return f"the driver is here, and gives error {error} for one"


def _device() -> Gpu | str:
    """The first CUDA device, or why there is none."""
    why = _asked_gpu()
    return gpu() or (why if isinstance(why, str) else "there is none")


def family_of(spec: TargetSpec) -> str:
    """Return the micro-architecture of a CPU target: the family that it is called by if there is one, else its mcpu."""
    named = any(name == spec.name and needs <= set(spec.features) for _, name, needs in FAMILIES)
    return spec.name if named else spec.mcpu


def missing_features(spec: TargetSpec) -> list[str]:
    """Return what this machine lacks to run code compiled for `spec`, as phrases for a person; empty if nothing.

    Of several parts it needs one only.
    """
    return lacking(spec, cpu().arch, cpu().features, _device() if spec.kind == "cuda" else "")


def lacking(spec: TargetSpec, arch: str, features: frozenset[str], device: Gpu | str) -> list[str]:
    """Return the same of a machine with such a CPU and CUDA device, or why it has none."""
    if spec.kind == "llvm" and spec.parts:
        return min((_missing_on_cpu(part, arch, features) for part in spec.parts), key=len)
    missing = _missing_on_cpu(spec if spec.host is None else spec.host, arch, features)
    if spec.kind == "cuda":
        missing += _missing_on_gpu([part.arch for part in spec.each], device)
    return missing


def capability_of(arch: str) -> tuple[int, int]:
    """Return the compute capability of `sm_80` or `sm_90a`: (8, 0) or (9, 0)."""
    digits = arch.removeprefix("sm_").removesuffix("a")
    return int(digits[:-1]), int(digits[-1])


def best_part(targets: Sequence[TargetSpec]) -> int | None:
    """Return which of an artifact's targets runs best here; None where none does.

    Of CPUs, whose targets come the least demanding first, that is the last that runs; of GPUs as `best_arch` says.
    """
    if targets[0].kind == "cuda":
        here, archs = gpu(), [target.arch for target in targets]
        best = None if here is None else best_arch(archs, here.capability)
        return None if best is None else archs.index(best)
    return max((place for place, target in enumerate(targets) if not missing_features(target)), default=None)


def best_arch(archs: Sequence[str], capability: tuple[int, int]) -> str | None:
    """Return the architecture whose code runs best on a GPU of this compute capability; None where none does.

    Code for `sm_90a` runs on 9.0 alone. Machine code for sm_XY runs on devices of the same major capability and at
    least that minor one; any later device compiles the PTX that lies beside it, when it is loaded.
    """
    ranks = {arch: _rank(arch, capability) for arch in archs}
    fitting = [arch for arch in archs if ranks[arch] is not None]
    return max(fitting, key=lambda arch: ranks[arch] or (), default=None)


def _rank(arch: str, here: tuple[int, int]) -> tuple[bool, bool, tuple[int, int]] | None:
    """Whether it is the device's own, whether it is machine code, and how new: None where it does not run."""
    wanted = capability_of(arch)
    if arch.endswith("a"):
        return (True, True, wanted) if here == wanted else None
    return (False, here[0] == wanted[0], wanted) if here >= wanted else None


def _missing_on_cpu(spec: TargetSpec, here: str, features: frozenset[str]) -> list[str]:
    arch = spec.triple.partition("-")[0]
    if arch != here:
        return [f"a CPU of architecture {arch} (this one is {here})"]
    return [f"CPU feature {name}" for name in sorted(set(spec.features) - features)]


def _missing_on_gpu(archs: Sequence[str], here: Gpu | str) -> list[str]:
    wanted = " or ".join("{}.{}".format(*capability_of(arch)) for arch in archs)
    if isinstance(here, str):
        return [f"a CUDA device of compute capability {wanted} ({here})"]
    if best_arch(archs, here.capability) is not None:
        return []
    found = "{}.{}".format(*here.capability)
    return [f"a CUDA device of compute capability {wanted} ({here.name} has {found})"]


def version_of(distribution: str) -> str | None:
    """Return the version of a package; None where it is not installed, or is a checkout that is only on the path."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
