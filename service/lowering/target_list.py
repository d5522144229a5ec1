"""Several targets for one artifact, CUDA devices or CPUs, the least demanding first; tvm is not imported for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relaxc.service.errors import InvalidTarget
from relaxc.service.machine import capability_of
from relaxc.service.request import TargetSpec

__all__ = ["one_of_many"]

_MOST = 8


def one_of_many(specs: Sequence[TargetSpec]) -> TargetSpec:
    """Return the target with these parts, equal ones once: the same for every order. Raise InvalidTarget."""
    parts = [part for spec in specs for part in spec.each]
    parts = sorted(dict.fromkeys(parts), key=_order)
    names = ", ".join(part.name for part in parts)
    if not 1 <= len(parts) <= _MOST:
        raise InvalidTarget(f"a list of targets has 1 to {_MOST} different ones, not {len(parts)}")
    if len(parts) == 1:
        return parts[0]
    if len({part.kind for part in parts}) > 1:
        raise InvalidTarget(
            f"CPUs and CUDA devices in a list of targets: {names}",
            remedy="Compile once for the CPUs together, and once for the CUDA devices.",
        )
    (_check_devices if parts[0].kind == "cuda" else _check_cpus)(parts, names)
    return replace(parts[0], name=",".join(part.name for part in parts), arch="", parts=tuple(parts))


def _check_devices(parts: Sequence[TargetSpec], names: str) -> None:
    if len({part.arch for part in parts}) < len(parts):
        raise InvalidTarget(f"two targets are for one architecture: {names}")
    if len({part.host for part in parts}) > 1:
        raise InvalidTarget(
            f"the targets have different hosts: {names}",
            remedy="`auto-gpu` has this machine's CPU: name its device instead, or give target JSON with one `host`.",
        )


def _check_cpus(parts: Sequence[TargetSpec], names: str) -> None:
    if len({part.triple for part in parts}) > 1:
        raise InvalidTarget(
            f"the targets are CPUs of different architectures: {names}", remedy="Compile once for each architecture."
        )
    if len({part.name for part in parts}) < len(parts):
        raise InvalidTarget(f"two different targets have one name: {names}", remedy="Give each a `name` of its own.")


def _order(spec: TargetSpec) -> tuple[tuple[int, ...], str]:
    """By what it computes with, before how much it asks for: a CPU that was detected has many features that no kernel
    has a use for.
    """
    return (capability_of(spec.arch), spec.arch) if spec.arch else ((spec.vector_bits, len(spec.features)), spec.name)
