"""OpenVINO as it comes: in bfloat16 on a CPU that has it, so it is no peer of fp32."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.cases import Case
from benchmarks.peers.runtimes import Loaded
from benchmarks.peers.runtimes.open_vino import load_with, prepare, supports, version

__all__ = ["COUNTS", "load", "prepare", "supports", "version"]

COUNTS = False


def load(case: Case, folder: Path, threads: int) -> Loaded:
    """See Runtime."""
    return load_with(case, folder, threads, {})
