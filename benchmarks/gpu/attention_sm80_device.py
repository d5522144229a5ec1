"""Attention of `attention_sm80_cases` on the device: as that of `attention_cases`."""

from __future__ import annotations

from benchmarks.gpu.attention_device import inputs, peers, reference, result, tolerance, work

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]
