"""A ring of slabs in the shared memory of CTAs that stay: what `ring.cuh` makes of a `Slab`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from relaxc.schedules.cuda.groups.slab import Slab, moved_bytes, threads_of
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.template import Parameters

__all__ = ["Ring"]

_BRINGERS = 128
_MOST_BATCHES = 4
_MOST_STAGES = 32
_MOST_THREADS = 1024
_BARRIERS_BYTES = 16
"""Two of each stage."""

# What follows is fitted to 23 points of six norms of 16 bits with two teams, timed on an H100: 8 % off at most where an
# image is larger than the cache.
_PAST_DATA_SHEET = 2.93 / 3.35
_START_US = 3.6
"""From the launch to the first result, and what the last slab takes that nothing else hides."""
_SM_BYTES_PER_US = 30_000.0
"""What one SM reads and writes at most."""
_LATER_US = 5.0
"""What a team takes for a slab at least, from the first byte to the last result, if it has had one before."""
_TURN_US = 0.12
"""Of the threads, where each team has one slab at most: nothing else is done meanwhile."""
_EXCHANGE_US = 0.2
"""In each round, for each CTA of a cluster but one."""


@dataclass(frozen=True)
class Ring:
    """CTAs, `slab.share` on an SM, that stay for several slabs: `teams` take one each, others bring the next."""

    slab: Slab
    teams: int
    gpu: Gpu

    @property
    def fits(self) -> bool:
        """Whether an SM has the threads, and the ring room for the slabs of all teams but one, and a batch.

        Where no cluster has a second slab, room for one is enough.
        """
        least = max(self.teams - 1, 1) * self.batches + (self.slab.tasks > self.clusters)
        resident = self.threads * self.slab.share
        has_threads = self.threads <= _MOST_THREADS and resident <= threads_of(self.gpu)
        return has_threads and self.stages >= least

    @property
    def holds_next(self) -> bool:
        """Whether it has room for half a slab beside one that waits or is stored, where there is a next one."""
        return self.fits and (self.slab.tasks <= self.clusters or 2 * self.stages >= 3 * self.batches)

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
        return self.gpu.alone(self.slab.cluster) * self.slab.share

    @property
    def clusters(self) -> int:
        """Clusters that are launched."""
        return min(self.resident, self.slab.tasks)

    def parameters(self) -> Parameters:
        """Return the parameters by name."""
        return {**self.slab.parameters(), "teams": self.teams}

    @property
    def microseconds(self) -> float:
        """Return what the rounds take: of memory, or of the teams, where that is more."""
        slab, rounds = self.slab, ceil(self.slab.tasks / self.clusters)
        share = slab.memory_microseconds(self.gpu, 1.0, _PAST_DATA_SHEET) * self.clusters / slab.tasks
        own = slab.pixels * slab.chunk * moved_bytes(slab.form) / _SM_BYTES_PER_US * slab.share
        later = ceil(rounds / self.teams) - 1
        alone = _TURN_US * slab.turns if rounds == 1 else 0.0
        exchanged = _EXCHANGE_US * (slab.cluster - 1) * (rounds - 1)
        return _START_US + max(rounds * max(share, own), later * _LATER_US) + alone + exchanged

    @property
    def _stage_bytes(self) -> int:
        return ceil(self.slab.turns / self.batches) * self.slab.turn_bytes

    @property
    def _fixed_bytes(self) -> int:
        """Of each team: what threads add up, two tables of parts with a barrier each, and the sums."""
        slab = self.slab
        pairs = slab.lines * slab.chunk // 2 * 8
        return self.teams * (pairs + 2 * (slab.table_bytes + 8) + slab.chunk // slab.form.width * 8)
