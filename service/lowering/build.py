"""A scheduled module as a shared library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.dump import Dump, no_dump
from service.request import TargetSpec

__all__ = ["build"]


def build(module: Any, spec: TargetSpec, out: Path, *, dump: Dump = no_dump) -> None:
    raise NotImplementedError
