"""Ours without any record: every kernel with the parameters that its template computes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.cases import Case
from benchmarks.peers.runtimes import Loaded, Prepared
from benchmarks.peers.runtimes.relaxc import load_from, prepare_with, supports, version

__all__ = ["COUNTS", "load", "prepare", "supports", "version"]

COUNTS = False

_NOTE = "relaxc-untuned.json"


def prepare(case: Case, folder: Path, threads: int) -> Prepared:
    """See Runtime."""
    return prepare_with(case, folder, _NOTE, default_records=False, precision=case.precision)


def load(case: Case, folder: Path, threads: int) -> Loaded:
    """See Runtime."""
    return load_from(folder / _NOTE, folder, threads)
