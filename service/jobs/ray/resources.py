"""What a node of a Ray cluster offers, by the names that tasks ask for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.lowering.target import resolve
from relaxc.service.request import TargetSpec, canonical_json

__all__ = ["KIND", "Kind", "builds", "kind_of", "resources_of"]

KIND = "relaxc_"
"""What the resource of a kind of machine begins with; no other of ours does."""

_BUILDS = "candidates"
_LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
_SHARE_DIGITS = 4
"""Ray counts resources in ten thousandths."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Machines that are alike, `nodes` of them: jobs of one resource run on any of them."""

    resource: str
    machine: Machine
    nodes: int

    def share(self, parts: int) -> dict[str, float]:
        """Return what a job takes of a node that runs `parts` at a time; a tuning, which is alone, takes all of it."""
        return {self.resource: max(10**-_SHARE_DIGITS, int(10**_SHARE_DIGITS / parts) / 10**_SHARE_DIGITS)}


def kind_of(machine: Machine) -> str:
    """Return the resource that all machines have that are alike for our purposes, and no others."""
    said = machine.to_dict()
    alike = {name: said[name] for name in ("target", "gpu_target", "cores", "gpus", "tools", "versions")}
    return KIND + hashlib.sha256(canonical_json(alike).encode()).hexdigest()[:12]


def resources_of(machine: Machine) -> dict[str, float]:
    """Return what `ray start --resources` is to be told of such a machine.

    One of its kind, as many candidates of tunings as it can build at a time, and one each of what it can run, by which
    people may place tasks of their own.
    """
    found = {kind_of(machine): 1.0, builds(machine.target): float(machine.cores)}
    if "nvcc" in machine.tools:
        found[f"{builds(machine.target)}_cuda"] = float(machine.cores)
    names = [machine.family, machine.arch, *(level for level in _LEVELS if not machine.lacks(resolve(level)))]
    if machine.gpu_target is not None:
        names.append(machine.gpu_target.name)
    return {**{name.replace("-", "_"): 1.0 for name in names}, **found}


def builds(spec: TargetSpec) -> str:
    """Return the resource of which building a candidate for this target takes one: any machine of ours can."""
    return f"{_BUILDS}_cuda" if spec.kind == "cuda" else _BUILDS
