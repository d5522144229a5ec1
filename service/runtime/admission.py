"""What is asked before an artifact's code is loaded: is the file the one, and can this machine run it?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import tvm_ffi

from relaxc.service import machine
from relaxc.service.errors import ArtifactCorrupt, InvalidOption, MachineMismatch
from relaxc.service.request import TargetSpec
from relaxc.service.runtime.cuda import load_runtime
from relaxc.service.tvm_libraries import runtime_version

__all__ = ["Requirements", "check_digest", "check_machine", "device_of"]


class Requirements(Protocol):
    """What a manifest says that its code needs: the CPU's architecture and features, and TVM's version."""

    @property
    def arch(self) -> str:
        """The architecture of the CPU, `x86_64`."""
        ...

    @property
    def features(self) -> Sequence[str]:
        """Features of the CPU, by LLVM's names."""
        ...

    @property
    def runtime(self) -> str:
        """The version."""
        ...


def check_digest(path: Path, wanted: str) -> None:
    """Raise ArtifactCorrupt where the file's SHA-256 is not `wanted`."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        raise ArtifactCorrupt(f"{path} has the digest {found}, not {wanted}", path=str(path))


def check_machine(target: TargetSpec, requires: Requirements, targets: Sequence[TargetSpec] = ()) -> None:
    """Raise MachineMismatch where `requires` or `target` is more than this machine has.

    `targets` are those that there is code for.
    """
    cpu = target.host or target
    cpu = replace(cpu, features=tuple({*cpu.features, *requires.features}))
    missing = machine.missing_features(replace(target, host=cpu) if target.host else cpu)
    if requires.arch != cpu.triple.partition("-")[0]:
        missing.append(f"a CPU of architecture {requires.arch}")
    here = runtime_version()
    if requires.runtime != here:
        missing.append(f"TVM runtime {requires.runtime} (this is {here})")
    if missing:
        names = ", ".join(each.name for each in targets or [target])
        raise MachineMismatch(
            f"this artifact was compiled for {names}; this machine lacks {', '.join(missing)}", missing=missing
        )


def device_of(target: TargetSpec, asked: str | None) -> tvm_ffi.Device:
    """Return the device that was `asked` for, or the target's first, with its runtime loaded.

    Raise InvalidOption for what is no device, and MachineMismatch for one that the code does not run on.
    """
    natural = "cuda" if target.kind == "cuda" else "cpu"
    kind, _, index = (asked or natural).partition(":")
    if kind not in ("cpu", "cuda") or not (index or "0").isdecimal():
        raise InvalidOption(f"device {asked!r} is not cpu, cuda or cuda:N", option="device")
    if kind != natural:
        raise MachineMismatch(f"this artifact was compiled for {natural}, it does not run on {asked}")
    if kind == "cuda":
        load_runtime()
    return tvm_ffi.device(kind, int(index or 0))
