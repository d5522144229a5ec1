"""Ours of the model in fp32 that a quantized one was made of; of others the same as ours."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.cases import Case
from benchmarks.peers.files import plain_path
from benchmarks.peers.runtimes import Loaded, Prepared
from benchmarks.peers.runtimes.relaxc import load_from, prepare_with, supports, version

__all__ = ["COUNTS", "load", "prepare", "supports", "version"]

COUNTS = False

_NOTE = "relaxc-fp32.json"


def prepare(case: Case, folder: Path, threads: int) -> Prepared:
    """See Runtime."""
    return prepare_with(case, folder, _NOTE, default_records=True, model=plain_path(case, folder))


def load(case: Case, folder: Path, threads: int) -> Loaded:
    """See Runtime."""
    return load_from(folder / _NOTE, folder, threads)
