"""Extents that kernels get wrong: 1, primes, and the neighbours of tiles; and the dtypes of a random case."""

from __future__ import annotations

import random
from math import prod

__all__ = ["LOW", "channels", "dtype_of", "extent", "out_of", "shape_of"]

LOW = ("float16", "bfloat16")
_TILES = (8, 16, 32, 64, 96, 128, 160, 192, 256, 512, 1024, 2048, 4096)
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 31, 37, 53, 61, 71, 97, 101, 127, 131, 197, 251, 257, 331, 509, 521, 769,
           1021, 1031, 1543, 2053, 4099)  # fmt: skip


def extent(chance: random.Random, most: int, least: int = 1) -> int:
    """Return an extent from `least` to `most`: beside a tile, a prime, 1, or any."""
    beside = [size + by for size in _TILES for by in (-1, 0, 1)]
    known = chance.choice((beside, _PRIMES, (1,), (chance.randrange(least, most + 1),)))
    return chance.choice([size for size in known if least <= size <= most] or [least])


def channels(chance: random.Random, most: int) -> int:
    """Return a multiple of 8 up to `most`, which is what 16-byte accesses take."""
    return 8 * extent(chance, most // 8)


def shape_of(chance: random.Random, most_elements: int) -> tuple[int, ...]:
    """Return one to four extents of up to `most_elements` together; now and then one of them is large."""
    while True:
        shape = [extent(chance, 600) for _ in range(chance.choice((1, 2, 2, 3, 3, 4)))]
        if chance.random() < 0.15:
            shape[chance.randrange(len(shape))] = chance.randrange(10_000, 300_000)
        if prod(shape) <= most_elements:
            return tuple(shape)


def dtype_of(chance: random.Random, wide: float = 0.1) -> str:
    """Return a dtype, float32 with the probability `wide`."""
    return "float32" if chance.random() < wide else chance.choice(LOW)


def out_of(chance: random.Random, dtype: str) -> str:
    """Return the dtype of the result: mostly that of the operands."""
    return chance.choice((dtype, dtype, dtype, "float32", *LOW)) if dtype == "float32" else chance.choice(
        (dtype, dtype, "float32")
    )  # fmt: skip
