"""Machines that are not this one."""

from __future__ import annotations

from dataclasses import replace

from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.lowering.target import resolve
from relaxc.service.machine import Gpu

__all__ = ["ARM", "BY_NAME", "HASWELL", "HOPPER", "ZEN"]

_ZEN = resolve("znver4")
_GIB = 1 << 30
CACHES = (32 << 10, 1 << 20, 32 << 20)

ZEN = Machine(
    title="A Zen 4", target=replace(_ZEN, cores=8, caches=CACHES), cores=8, memory_bytes=32 * _GIB, tools=("nvcc",)
)
HASWELL = Machine(
    title="A Haswell",
    target=replace(resolve("x86-64-v3"), name="haswell", cores=4, caches=(32 << 10, 256 << 10, 8 << 20)),
    cores=4,
    memory_bytes=8 * _GIB,
)
HOPPER = replace(
    HASWELL,
    title="A Haswell with a GPU",
    gpus=(Gpu("A Hopper", (9, 0)),),
    gpu_target=replace(resolve("cuda-sm90"), host=HASWELL.target),
    tools=("nvcc",),
)
ARM = Machine(title="An Arm", target=resolve("aarch64"), cores=4, memory_bytes=8 * _GIB)

BY_NAME = {"zen": ZEN, "haswell": HASWELL, "hopper": HOPPER, "arm": ARM}
