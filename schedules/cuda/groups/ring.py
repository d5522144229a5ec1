"""A ring of slabs in the shared memory of CTAs that stay: what `ring.cuh` makes of a `Slab`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from schedules.cuda.groups.slab import Slab, threads_of
from schedules.hardware import Gpu

__all__ = ["Ring"]

_BRINGERS = 128
_MOST_BATCHES = 4
_MOST_STAGES = 32
_MOST_THREADS = 1024
_BARRIERS_BYTES = 16
"""Two of each stage."""


@dataclass(frozen=True)
class Ring:
    """CTAs, `slab.share` on an SM, that stay for several slabs: `teams` take one each, others bring the next."""

    slab: Slab
    teams: int
    gpu: Gpu

    @property
    def fits(self) -> bool:
        """Whether an SM has the threads, and the ring room for the slabs of all teams but one, and a batch."""
        least = max(self.teams - 1, 1) * self.batches + 1
        resident = self.threads * self.slab.share
        has_threads = self.threads <= _MOST_THREADS and resident <= threads_of(self.gpu)
        return has_threads and self.stages >= least

    @property
    def threads(self) -> int:
        """Threads of a CTA: the teams', and those that bring."""
        return self.teams * self.slab.whole_threads + _BRINGERS

    @property
    def batches(self) -> int:
        """In how many a slab comes."""
        return min(_MOST_BATCHES, self.slab.turns)

    @property
    def stages(self) -> int:
        """Batches that the ring has room for."""
        return min(
            _MOST_STAGES, (self.slab.room(self.gpu) - self._fixed_bytes) // (self._stage_bytes + _BARRIERS_BYTES)
        )

    @property
    def shared_bytes(self) -> int:
        """Return the shared memory of a CTA."""
        return self.stages * (self._stage_bytes + _BARRIERS_BYTES) + self._fixed_bytes

    @property
    def resident(self) -> int:
        """Clusters that are there at once."""
        return self.gpu.clusters(self.slab.cluster) * self.slab.share

    @property
    def clusters(self) -> int:
        """Clusters that are launched."""
        return min(self.resident, self.slab.tasks)

    @property
    def _stage_bytes(self) -> int:
        return ceil(self.slab.turns / self.batches) * self.slab.turn_bytes

    @property
    def _fixed_bytes(self) -> int:
        """Of each team: what threads add up, two tables of parts with a barrier each, and the sums."""
        slab = self.slab
        pairs = slab.lines * slab.chunk // 2 * 8
        return self.teams * (pairs + 2 * (slab.table_bytes + 8) + slab.chunk // slab.form.width * 8)
