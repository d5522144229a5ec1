"""Convolutions of `conv_sm80_cases` on the device: as those of `conv_cases`."""

from __future__ import annotations

from benchmarks.gpu.conv_device import inputs, peers, reference, result, tolerance, work

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]
