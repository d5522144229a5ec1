"""What a job is expected to need of memory, and how much of it may be given out at once."""

from __future__ import annotations

from collections.abc import Hashable

from service import machine
from service.config import settings
from service.jobs.database.rows import JobKind

__all__ = ["Budget", "estimate"]

_BASE_BYTES = 768 << 20
"""tvm, the frontend, LLVM and g++ for a small model."""

_TIMES_MODEL = {JobKind.COMPILE: 5, JobKind.TUNE: 5, JobKind.VERIFY: 4, JobKind.BENCH: 2}
"""Copies of the weights at the peak: the model, its constants, the packed ones, the artifact, the reference's."""

_SHARE_OF_MACHINE = 0.8


def estimate(kind: JobKind, model_bytes: int) -> int:
    """Return the bytes that a job on a model, or an artifact, of this size may take; never over its hard limit."""
    return min(_BASE_BYTES + _TIMES_MODEL[kind] * model_bytes, settings().compile_memory_bytes)


class Budget:
    """Memory that is given out to jobs. Not locked: one thread has it."""

    def __init__(self, limit_bytes: int) -> None:
        """0 is four fifths of the machine's memory, or of what its container may have."""
        self.limit_bytes = limit_bytes or int(machine.memory_bytes() * _SHARE_OF_MACHINE)
        self._taken: dict[Hashable, int] = {}

    @property
    def taken_bytes(self) -> int:
        """How much is given out."""
        return sum(self._taken.values())

    def fits(self, size: int, *, freed: int = 0) -> bool:
        """Return whether a job of this size may start once `freed` bytes are back; one over the limit starts alone."""
        taken = self.taken_bytes - freed
        return taken <= 0 or taken + size <= self.limit_bytes

    def take(self, who: Hashable, size: int) -> None:
        """Give `who` this much from now on."""
        self._taken[who] = size

    def release(self, who: Hashable) -> None:
        """Free what `who` had."""
        self._taken.pop(who, None)
