"""Copies of a kernel's weights, as many as the model's weights have room for: each call finds its own as a model would.

A model reads a weight once an inference, after all the others. Whether it comes from the shared cache or from memory
thus hangs on how large all of them are together, which copies that are read in turns repeat for one kernel.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from relaxc.service.runtime.tensors import ALIGN, Array, wrap_numpy

__all__ = ["POOL_BYTES", "WeightCopies"]

POOL_BYTES = 1 << 30
"""More than a core's share of any shared cache: what is read in turns from so much comes from memory."""
_MAX_COPIES = 8192


class WeightCopies:
    """Makes lists of arguments that differ in where their weights are. One pool of memory serves every kernel."""

    def __init__(self, limit_bytes: int = POOL_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._pool = mmap.mmap(-1, mmap.PAGESIZE)

    def lists(self, values: Sequence[Array | int], weights: Sequence[int], total_bytes: int) -> list[list[Any]]:
        """Return arguments with the weights at the positions `weights` in other places in each list, the rest shared.

        The weights of all lists together take `total_bytes`, `limit_bytes` at most; one list where they take more by
        themselves. What an earlier call returned must not be used any more.
        """
        shared = [v if isinstance(v, int) or i in weights else tvm.runtime.tensor(v) for i, v in enumerate(values)]
        originals = {position: np.ascontiguousarray(values[position]) for position in weights}
        size = sum(_room(original) for original in originals.values())
        if not size:
            return [shared]
        count = max(1, min(min(total_bytes, self._limit_bytes) // size, _MAX_COPIES))
        self._grow(size * count)
        return [self._placed(shared, originals, number * size) for number in range(count)]

    def _grow(self, size: int) -> None:
        """A pool of `size` bytes in small pages, as those that an artifact's weights are mapped in."""
        if len(self._pool) < size:
            self._pool = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                self._pool.madvise(mmap.MADV_NOHUGEPAGE)

    def _placed(self, shared: Sequence[Any], originals: dict[int, Array], offset: int) -> list[Any]:
        arguments = list(shared)
        for position, original in originals.items():
            copy = np.frombuffer(self._pool, original.dtype, original.size, offset).reshape(original.shape)
            np.copyto(copy, original)
            arguments[position] = wrap_numpy(copy)
            offset += _room(original)
        return arguments


def _room(array: Array) -> int:
    return -(-array.nbytes // ALIGN) * ALIGN
