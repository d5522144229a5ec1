"""What a GPU can do at most, as its hardware row has it: an artifact's manifest carries it under `passes.peak`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from relaxc.service.runtime.peak import Level, Peak, levels_of

__all__ = ["GpuPeak"]

_UNKNOWN = 1e12
"""GFLOP/s of operands that no tensor core multiplies: such a kernel is bound by its bytes."""


@dataclass(frozen=True, slots=True)
class GpuPeak:
    """10^9 floating-point operations a second by the dtype of the operands, and bytes from L2 and from memory.

    `gflops` is that of float16, for a chart with one roof. No kernel exceeds a data sheet for long.
    """

    machine: str
    gflops: float
    by_dtype: Mapping[str, float]
    levels: tuple[Level, ...]
    source: str = "data sheet"

    def of(self, dtype: str) -> Peak:
        """Return the peak for operands of `dtype`, which may have the accumulator's behind a plus."""
        reached = self.by_dtype.get(dtype.partition("+")[0], _UNKNOWN)
        return Peak(self.machine, 1, reached, self.levels)

    def to_dict(self) -> dict[str, Any]:
        """Return the peak as JSON values; `from_dict` is its inverse."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> GpuPeak:
        """Return the peak that `to_dict` described. KeyError, TypeError or ValueError for what is none."""
        found = GpuPeak(data["machine"], data["gflops"], dict(data["by_dtype"]), levels_of(data), data["source"])
        if min(found.gflops, *found.by_dtype.values()) <= 0:
            raise ValueError("a peak is positive")
        return found
