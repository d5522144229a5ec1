"""Whether tests can use a GPU: `.ci/run` and most machines have none, so each says in its docstring what it shows."""

from __future__ import annotations

import shutil

import pytest

from relaxc.service import machine

__all__ = ["needs_gpu"]

needs_gpu = pytest.mark.skipif(
    shutil.which("nvcc") is None or getattr(machine.gpu(), "capability", None) != (9, 0),
    reason="there is no GPU of compute capability 9.0, or no nvcc",
)
