"""The least time that a kernel can take here: its arithmetic at the peak, or its bytes from where they fit.

After Williams, Waterman and Patterson, 'Roofline: an insightful visual performance model' (2009), with a bandwidth for
each cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.runtime.peak import Level, Peak

__all__ = ["Limit", "limit_of"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A lower bound of a time, and what it is that bounds: `compute`, or the name of a cache level or `memory`."""

    ms: float
    bound: str


def limit_of(peak: Peak, flops: float, size_bytes: int, written_bytes: int = 0) -> Limit:
    """The limit of a kernel that computes `flops` and moves `size_bytes`, `written_bytes` of them to the output.

    Its bytes come from the first level that holds them all. It is the limit of a kernel run over and over: within a
    model its weights may come from further away. Nothing to do takes no time.
    """
    compute_ms = flops / peak.gflops / 1e6
    level = peak.level_of(size_bytes)
    bytes_ms = _bytes_ms(level, size_bytes - written_bytes, written_bytes)
    return Limit(compute_ms, "compute") if compute_ms >= bytes_ms else Limit(bytes_ms, level.name)


def _bytes_ms(level: Level, read: int, written: int) -> float:
    """Reading as fast as the probe that reads; a byte written takes what the probe that copies took beyond that."""
    read_cost = 1 / level.read_gbps
    write_cost = max(0.0, 2 / level.copy_gbps - read_cost)
    return (read * read_cost + written * write_cost) / 1e6
