"""Products of `gemm_sm80_cases` on the device: as those of `gemm_cases`."""

from __future__ import annotations

from benchmarks.gpu.gemm_device import inputs, peers, reference, result, tolerance, work

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]
