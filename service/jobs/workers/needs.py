"""What a job needs of the machine that it runs on."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relaxc.service.errors import RelaxcError
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.machine import FAMILIES, capability_of, family_of
from relaxc.service.request import TargetSpec, canonical_json

__all__ = ["ANYTHING", "Needs", "needs_of"]

_LOG = logging.getLogger("relaxc.placement")
_NVCC = ("nvcc",)
_UNREADABLE = (RelaxcError, LookupError, TypeError, ValueError, AttributeError)
"""What the needs of a job may raise that a later version, or a fault, has written into its row."""

_FAMILIES = frozenset(name for _, name, _ in FAMILIES)


@dataclass(frozen=True, slots=True)
class Needs:
    """Code for `runs` is run there, and where it `measures`, on just the kind of machine that this code is for.

    `device` is for `auto-gpu`, which is resolved where it runs; `tools` are programs that the build needs. A device
    elsewhere (`devices.Device`) measures as well as such a machine.
    """

    runs: TargetSpec | None = None
    measures: bool = False
    device: bool = False
    tools: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What equal needs share, and no others; empty for a job that needs nothing."""
        text = canonical_json(self.to_dict())
        return "" if self == ANYTHING else hashlib.sha256(text.encode()).hexdigest()

    @property
    def label(self) -> str:
        """What they are called in numbers: a level or an architecture, of which there are few, whatever is asked."""
        if self.runs is None:
            return "gpu" if self.device else "compiler"
        return "cuda" if self.runs.kind == "cuda" else self.runs.mcpu

    def missing(self, machine: Machine) -> list[str]:
        """Return what this machine lacks, as phrases for a person; empty where it can take the job.

        Needs that cannot be compared with a machine no machine has: other jobs are claimed past theirs.
        """
        try:
            return self._missing(machine)
        except _UNREADABLE as error:
            _warn_of(self.key, repr(error))
            return UNREADABLE.missing(machine)

    def _missing(self, machine: Machine) -> list[str]:
        found = [f"the program {tool}" for tool in self.tools if tool not in machine.tools]
        if self.device and not machine.gpus:
            found.append("a CUDA device")
        if self.runs is None or (self.measures and machine.device_for(self.runs) is not None):
            return found
        found += machine.lacks(self.runs)
        return found if found or not self.measures else [*_other_kind(self.runs, machine)]

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON values; `from_dict` is its inverse."""
        runs = None if self.runs is None else self.runs.to_dict()
        return {"runs": runs, "measures": self.measures, "device": self.device, "tools": list(self.tools)}

    @staticmethod
    def from_dict(data: dict[str, Any] | None) -> Needs:
        """Return the needs that `to_dict` described; None is of a job that needs nothing.

        What cannot be read is UNREADABLE: one job's row stops no claim of another's.
        """
        if data is None:
            return ANYTHING
        try:
            runs = None if data["runs"] is None else TargetSpec.from_dict(data["runs"])
            return Needs(runs, data["measures"], data["device"], tuple(data["tools"]))
        except _UNREADABLE as error:
            _warn_of(repr(data)[:200], repr(error))
            return UNREADABLE


@lru_cache(maxsize=1000)  # once for each: who claims asks twice a second
def _warn_of(needs: str, error: str) -> None:
    _LOG.warning("what a job needs cannot be told, so nobody takes it: %s: %s", needs, error)


ANYTHING = Needs()
UNREADABLE = Needs(tools=("relaxc of the version that wrote what the job needs",))
"""What no machine has."""


def needs_of(kind: JobKind, target: TargetSpec | None, asked: str, *, can_be_run: bool) -> Needs:
    """Return what a job of this kind needs; `target` is None where `asked` is resolved by the machine that takes it.

    A compile needs a machine that runs its code for the verification alone, so only where some machine can. Raise
    InvalidTarget for a tuning of several targets.
    """
    if target is None:
        device = asked.strip() in ("auto-gpu", "cuda")
        return Needs(device=device, tools=_NVCC if device else ())
    if kind is JobKind.TUNE:
        return Needs(target.single("a tuning"), measures=True, tools=_tools(target))
    if kind is JobKind.COMPILE:
        return Needs(target if can_be_run else None, tools=_tools(target))
    return Needs(target)


def _tools(target: TargetSpec) -> tuple[str, ...]:
    return _NVCC if target.kind == "cuda" else ()


def _other_kind(spec: TargetSpec, machine: Machine) -> list[str]:
    """Why times of this machine, which can run the code, say nothing of the one that it is for.

    A level such as x86-64-v3 is of many machines, and each that runs it may measure.
    """
    if spec.kind == "cuda":
        have, wanted = machine.gpus[0].capability, capability_of(spec.arch)
        return [] if have == wanted else ["a CUDA device of compute capability {}.{} itself".format(*wanted)]
    family = family_of(spec)
    if family in _FAMILIES and family != machine.family:
        return [f"a {family} CPU (this one is {machine.family})"]
    if spec.caches and machine.cores < spec.cores:
        return [f"{spec.cores} cores (it has {machine.cores})"]
    return []
