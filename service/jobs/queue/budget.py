"""What a job is expected to need of memory, and how much of it may be given out at once."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from relaxc.service import machine
from relaxc.service.config import settings
from relaxc.service.errors import Busy
from relaxc.service.jobs.database.rows import JobKind

__all__ = ["Budget", "estimate"]

_BASE_BYTES = 768 << 20
"""tvm, the frontend, LLVM and g++ for a small model."""

_TIMES_MODEL = {JobKind.COMPILE: 5, JobKind.TUNE: 5, JobKind.VERIFY: 4, JobKind.BENCH: 2}
"""Copies of the weights at the peak: the model, its constants, the packed ones, the artifact, the reference's."""

_SHARE_OF_MACHINE = 0.8
_LEND_S, _RETRY_S = 60.0, 10


def estimate(kind: JobKind, model_bytes: int) -> int:
    """Return the bytes that a job on a model, or an artifact, of this size may take; never over its hard limit."""
    return min(_BASE_BYTES + _TIMES_MODEL[kind] * model_bytes, settings().compile_memory_bytes)


class Budget:
    """Memory that is given out to jobs, and lent to what looks at uploads beside them. Any thread may call it.

    A loan that begins between `fits` and `take` may pass the limit by itself: the share of the machine has room for it.
    """

    def __init__(self, limit_bytes: int) -> None:
        """0 is four fifths of the machine's memory, or of what its container may have."""
        self.limit_bytes = limit_bytes or int(machine.memory_bytes() * _SHARE_OF_MACHINE)
        self._lock = threading.Condition()
        self._taken: dict[Hashable, int] = {}
        self._lent: dict[object, int] = {}
        self._job_waits = False

    @property
    def taken_bytes(self) -> int:
        """How much jobs have."""
        with self._lock:
            return sum(self._taken.values())

    @property
    def lent_bytes(self) -> int:
        """How much is lent."""
        with self._lock:
            return sum(self._lent.values())

    def fits(self, size: int, *, freed: int = 0) -> bool:
        """Return whether a job of this size may start once `freed` bytes are back; one over the limit starts alone."""
        with self._lock:
            taken = self.taken_bytes - freed
            fits = taken <= 0 or taken + self.lent_bytes + size <= self.limit_bytes
            self._job_waits = not fits
            return fits

    def take(self, who: Hashable, size: int) -> None:
        """Give `who` this much from now on."""
        with self._lock:
            self._taken[who] = size

    def release(self, who: Hashable) -> None:
        """Free what `who` had."""
        with self._lock:
            self._taken.pop(who, None)
            self._lock.notify_all()

    @contextmanager
    def lend(self, size: int, timeout_s: float = _LEND_S) -> Iterator[None]:
        """Have this much while the block runs, once there is so much. Raise Busy after `timeout_s`.

        One borrower may always, as jobs may run for hours; while a job waits for memory, only one.
        """
        loan = object()
        with self._lock:
            if not self._lock.wait_for(lambda: self._may_lend(size), timeout_s):
                raise Busy("the memory for looking at uploads is taken", retry_after_s=_RETRY_S)
            self._lent[loan] = size
        try:
            yield
        finally:
            with self._lock:
                del self._lent[loan]
                self._lock.notify_all()

    def _may_lend(self, size: int) -> bool:
        room = self.taken_bytes + self.lent_bytes + size <= self.limit_bytes
        return not self._lent or (room and not self._job_waits)
