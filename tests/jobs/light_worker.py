"""A zygote with what `tests.jobs.entries:by_seed` needs, and no compiler: two seconds less for each start."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from relaxc.service.process import worker
from relaxc.service.process.task import Flavour
from relaxc.service.process.zygote import Zygote
from tests.jobs.entries import small_library

__all__ = ["BY_SEED", "light_zygote"]

BY_SEED = "tests.jobs.entries:by_seed"

_NEEDED = (
    "numpy",
    "pickle",
    "relaxc.service.jobs.entries",
    "relaxc.service.artifact.packing",
    "relaxc.service.request",
    "tests.jobs.entries",
)


def light_zygote(module: str, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Zygote:
    """Starts this module where a server would start its own worker."""
    return Zygote(__name__ if module == worker.__name__ else module, arguments, environment, log)


def _preload(flavour: Flavour) -> None:
    if flavour is Flavour.ONNX:
        sys.modules["torch"] = None  # type: ignore[assignment]  # as in service/process/worker.py
    for name in _NEEDED:
        importlib.import_module(name)
    small_library()


if __name__ == "__main__":
    worker.preload = _preload
    worker.main()
