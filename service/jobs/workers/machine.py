"""What a worker says of its machine, as a value that goes through the database."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from relaxc.service import machine
from relaxc.service.config import settings
from relaxc.service.errors import InvalidTarget
from relaxc.service.jobs.workers.devices import Device, devices_of_settings
from relaxc.service.lowering.target import resolve
from relaxc.service.machine import Gpu, family_of, version_of
from relaxc.service.request import TargetSpec

__all__ = ["Machine"]

_PACKAGES = {"relaxc": "relaxc", "tvm": "apache-tvm", "torch": "torch"}


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that jobs run on; `target` and `gpu_target` are what `auto` and `auto-gpu` mean there.

    `tools` are programs that some targets need and that it has, `versions` those of what compiles; it measures on
    `devices` elsewhere.
    """

    title: str
    target: TargetSpec
    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    gpu_target: TargetSpec | None = None
    tools: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    devices: tuple[Device, ...] = ()

    @staticmethod
    @lru_cache(maxsize=1)
    def here() -> Machine:
        """Return what this machine is. Raise InvalidTarget where there is no code generator for its CPU,
        InvalidOption for settings that name no devices.
        """
        gpu = machine.gpu()
        return Machine(
            title=machine.model_name(),
            target=resolve("auto"),
            cores=machine.processors(),
            memory_bytes=machine.memory_bytes(),
            gpus=() if gpu is None else (gpu,),
            gpu_target=None if gpu is None else resolve("auto-gpu"),
            tools=("nvcc",) if shutil.which(settings().nvcc) else (),
            versions={name: found for name, package in _PACKAGES.items() if (found := version_of(package))},
            devices=devices_of_settings(),
        )

    @staticmethod
    def here_if_known() -> Machine | None:
        """Return the same, None where there is no code generator for this CPU."""
        try:
            return Machine.here()
        except InvalidTarget:
            return None

    @property
    def arch(self) -> str:
        """The CPU's architecture, `x86_64`."""
        return self.target.triple.partition("-")[0]

    @property
    def family(self) -> str:
        """Its micro-architecture, `sapphirerapids`; where it has no name its level, `x86-64-v3`."""
        return family_of(self.target)

    @property
    def kind(self) -> str:
        """What it is called by, with its GPU: `sapphirerapids`, `znver4 cuda-sm90`."""
        return " ".join(each.name for each in (self.target, self.gpu_target) if each is not None)

    def lacks(self, spec: TargetSpec) -> list[str]:
        """Return what it lacks to run code for `spec`, as phrases for a person; empty if nothing."""
        device = self.gpus[0] if self.gpus else "there is none"
        return machine.lacking(spec, self.arch, frozenset(self.target.features), device)

    def device_for(self, spec: TargetSpec) -> Device | None:
        """Return the device elsewhere on which it measures for this target, if it has one."""
        return next((device for device in self.devices if device.target == spec), None)

    def means(self, target: str) -> TargetSpec:
        """Return what this target means there, `auto` and `auto-gpu` among them. Raise InvalidTarget."""
        word = target.strip()
        if word == "auto":
            return self.target
        if word in ("auto-gpu", "cuda"):
            if self.gpu_target is None:
                raise InvalidTarget(f"{self.title} has no CUDA device", remedy="Name the device: `cuda-sm90`.")
            return self.gpu_target
        return resolve(word)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; `from_dict` is its inverse."""
        return {
            **{name: getattr(self, name) for name in ("title", "cores", "memory_bytes")},
            "target": self.target.to_dict(),
            "gpu_target": None if self.gpu_target is None else self.gpu_target.to_dict(),
            "gpus": [{**asdict(gpu), "capability": list(gpu.capability)} for gpu in self.gpus],
            "tools": list(self.tools),
            "versions": dict(self.versions),
            "devices": [device.to_dict() for device in self.devices],
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Machine:
        """Return the machine that `to_dict` described."""
        return Machine(
            title=data["title"],
            target=TargetSpec.from_dict(data["target"]),
            cores=data["cores"],
            memory_bytes=data["memory_bytes"],
            gpus=tuple(Gpu(each["name"], (each["capability"][0], each["capability"][1])) for each in data["gpus"]),
            gpu_target=None if data["gpu_target"] is None else TargetSpec.from_dict(data["gpu_target"]),
            tools=tuple(data["tools"]),
            versions=data["versions"],
            devices=tuple(map(Device.from_dict, data.get("devices", ()))),  # earlier versions had none
        )
