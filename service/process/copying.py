"""Large arrays, copied by several cores at once: most of the time is memory's that is touched the first time."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

__all__ = ["copy_into"]

_LEAST_BYTES = 1 << 20
"""Of a part: a thread takes a tenth of a millisecond to start, in which one core copies as much."""

_MOST_CORES = 4


def copy_into(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Copy `source`, of any strides, into `target`, of its shape, cast to its dtype."""
    parts = min(len(os.sched_getaffinity(0)), _MOST_CORES, target.nbytes // _LEAST_BYTES)
    axis = next((axis for axis, size in enumerate(target.shape) if size >= parts), None)
    if parts < 2 or axis is None:
        np.copyto(target, source, casting="unsafe")
        return
    targets, sources = (np.array_split(array, parts, axis) for array in (target, source))
    with ThreadPoolExecutor(parts - 1) as others:
        copies = [
            others.submit(np.copyto, *pair, casting="unsafe") for pair in zip(targets[1:], sources[1:], strict=True)
        ]
        np.copyto(targets[0], sources[0], casting="unsafe")
        for copy in copies:
            copy.result()
