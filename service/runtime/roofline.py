"""The least time that a kernel can take here: its arithmetic at the peak, or its bytes from where they fit.

After Williams, Waterman and Patterson, 'Roofline: an insightful visual performance model' (2009), with a bandwidth for
each cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from relaxc.service.runtime.peak import Level, Peak

__all__ = ["Far", "Limit", "limit_of"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A lower bound of a time, and what it is that bounds: `compute`, or the name of a cache level or `memory`."""

    ms: float
    bound: str


@dataclass(frozen=True, slots=True)
class Far:
    """`read_bytes` of a kernel's bytes that come from where `whole_bytes` fit: its weights, among all of its model."""

    read_bytes: int = 0
    whole_bytes: int = 0


def limit_of(peak: Peak, flops: float, size_bytes: int, written_bytes: int = 0, far: Far | None = None) -> Limit:
    """Return the limit of a kernel that computes `flops` and moves `size_bytes`, `written_bytes` of them to the output.

    Its bytes come from the first level that holds them all, those that are `far` from further away. Without these it
    is the limit of a kernel run over and over. Nothing to do takes no time.
    """
    far = far or Far()
    compute_ms = flops / peak.gflops / 1e6
    level = peak.level_of(size_bytes)
    away = peak.level_of(max(size_bytes, far.whole_bytes))
    near_ms = _bytes_ms(level, size_bytes - written_bytes - far.read_bytes, written_bytes)
    far_ms = _bytes_ms(away, far.read_bytes, 0)
    if compute_ms >= near_ms + far_ms:
        return Limit(compute_ms, "compute")
    return Limit(near_ms + far_ms, away.name if far_ms > near_ms else level.name)


def _bytes_ms(level: Level, read: int, written: int) -> float:
    """Reading as fast as the probe that reads; a byte written takes what the probe that copies took beyond that."""
    read_cost = 1 / level.read_gbps
    write_cost = max(0.0, 2 / level.copy_gbps - read_cost)
    return (read * read_cost + written * write_cost) / 1e6
