"""Several targets for one artifact: CUDA devices in the order of their architectures; tvm is not imported for it."""

from __future__ import annotations

from collections.abc import Sequence

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
    if cpus := [part.name for part in parts if part.kind != "cuda"]:
        if len(parts) == 1:
            return parts[0]
        raise InvalidTarget(
            f"{', '.join(cpus)} in a list of targets: one artifact is for several CUDA devices, or for one CPU",
            remedy="Compile once for each CPU, and once for the CUDA devices together.",
        )
    if not 1 <= len(parts) <= _MOST:
        raise InvalidTarget(f"a list of targets has 1 to {_MOST} different ones, not {len(parts)}")
    if len({part.arch for part in parts}) < len(parts):
        raise InvalidTarget(f"two targets are for one architecture: {names}")
    if len({part.host for part in parts}) > 1:
        raise InvalidTarget(
            f"the targets have different hosts: {names}",
            remedy="`auto-gpu` has this machine's CPU: name its device instead, or give target JSON with one `host`.",
        )
    if len(parts) == 1:
        return parts[0]
    return TargetSpec(",".join(part.name for part in parts), "cuda", triple="", host=parts[0].host, parts=tuple(parts))


def _order(spec: TargetSpec) -> tuple[tuple[int, ...], str]:
    return (capability_of(spec.arch), spec.arch) if spec.arch else ((), "")
