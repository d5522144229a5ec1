"""The values that a graph has while it is drawn, and what a node may take of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from tests.fuzz.case import Array, Env
from tests.fuzz.values import DTYPES, drawn, special

__all__ = ["NoValue", "Pool"]

T = TypeVar("T")


class NoValue(Exception):
    """The pool has no value of such a dtype and rank, and none is made."""


class Pool:
    """The values of each call by name, with the constants; each draw is the seed's.

    Shapes are those of the first call; a size that differs between calls is symbolic.
    """

    def __init__(
        self, chance: random.Random, rng: np.random.Generator, opset: int, calls: int, *, is_special: bool
    ) -> None:
        self.rng, self.opset, self._is_special = rng, opset, is_special
        self.envs: list[Env] = [{} for _ in range(calls)]
        self.constants: Env = {}
        self.names: list[str] = []
        self.inputs: list[str] = []
        self._random = chance
        self._count = 0
        self._sizes = [chance.choice((1, 2, 3, 4, 5, 7, 8, 16, 17)) for _ in range(4)]

    # Chance

    def chance(self, share: float) -> bool:
        """Return True in this share of draws."""
        return self._random.random() < share

    def choice(self, among: Sequence[T]) -> T:
        """Return one of them."""
        return self._random.choice(among)

    def integer(self, least: int, most: int) -> int:
        """Return a number of this range, both ends in it."""
        return self._random.randint(least, max(least, most))

    def shuffled(self, items: list[T]) -> list[T]:
        """Return them in another order."""
        return self._random.sample(items, len(items))

    def size(self) -> int:
        """Return a size, mostly one of a few that the graph uses again and again."""
        return self.choice(self._sizes) if self.chance(0.8) else self.integer(1, 20)

    def shape_drawn(self, most: int) -> tuple[int, ...]:
        """Return a shape of up to so many dims."""
        return tuple(self.size() for _ in range(self.integer(0, most)))

    def axis(self, rank: int) -> int:
        """Return an axis of a shape, from the front or the back."""
        if not rank:
            raise NoValue
        return self.integer(-rank, rank - 1)

    def axes(self, rank: int) -> list[int]:
        """Return different axes of a shape, at least one."""
        if not rank:
            raise NoValue
        found = self._random.sample(range(rank), self.integer(1, rank))
        return [axis - rank if self.chance(0.3) else axis for axis in found]

    # Values

    def fresh(self) -> str:
        """Return a name that no value has."""
        self._count += 1
        return f"v{self._count}"

    def array(self, name: str, call: int = 0) -> Array:
        """Return what a value is in a call."""
        return self.constants[name] if name in self.constants else self.envs[call][name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a value's shape in the first call."""
        return tuple(self.array(name).shape)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return a value's dtype."""
        return np.dtype(self.array(name).dtype)

    def static_ones(self, name: str) -> list[int]:
        """Return a value's sizes, with 1 for those that differ between calls."""
        shapes = [self.array(name, call).shape for call in range(len(self.envs))]
        return [sizes[0] if len(set(sizes)) == 1 else 1 for sizes in zip(*shapes, strict=True)]

    def value(self, dtypes: Iterable[Any] | None, ranks: Sequence[int] | None = None) -> str:
        """Return the name of a value of one of these dtypes and ranks, a late one rather than an early one.

        Now and then, and where there is none, it is a new input or a constant.
        """
        wanted = None if dtypes is None else [np.dtype(DTYPES.get(each, each)) for each in dtypes]
        found = [
            name
            for name in self.names
            if (wanted is None or self.dtype(name) in wanted) and (ranks is None or len(self.shape(name)) in ranks)
        ]
        if found and self.chance(0.95):
            return self.choice(found[-5:] if self.chance(0.6) else found)
        if found or not self.chance(0.5):
            raise NoValue
        rank = self.choice(ranks or (0, 1, 2, 3))
        shape, dtype = [self.size() for _ in range(rank)], self.choice(wanted or list(DTYPES.values()))
        if np.prod(shape) > 2000:
            raise NoValue
        return self.input_of([shape] * len(self.envs), dtype) if self.chance(0.8) else self.constant_of(shape, dtype)

    def input_of(self, shapes: Sequence[Sequence[int]], dtype: np.dtype[Any]) -> str:
        """Return the name of a new input, with a shape for each call; the last call may have special values."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.names.append(name)
        for call, (env, shape) in enumerate(zip(self.envs, shapes, strict=True)):
            is_special = self._is_special and call == len(self.envs) - 1
            env[name] = (special if is_special else drawn)(self.rng, shape, dtype)
        return name

    def give(self, name: str) -> None:
        """Make a constant an input, the same in each call; no other node takes it."""
        array = self.constants.pop(name)
        self.inputs.append(name)
        for env in self.envs:
            env[name] = array

    def beside(self, name: str, dtypes: Iterable[Any]) -> str:
        """Return a value of one of these dtypes that broadcasts with another: one that is there, or a constant."""
        wanted = [np.dtype(DTYPES.get(each, each)) for each in dtypes]
        shape = self.shape(name)
        found = [other for other in self.names if self.dtype(other) in wanted and _broadcasts(shape, self.shape(other))]
        if found and self.chance(0.75):
            return self.choice(found[-8:])
        return self.constant_of(self.shaped_beside(name), self.choice(wanted))

    def shaped_beside(self, name: str) -> list[int]:
        """Return a shape that broadcasts with a value's in every call."""
        sizes = [size if self.chance(0.7) else 1 for size in self.static_ones(name)]
        return sizes[self.integer(0, len(sizes)) if self.chance(0.3) else 0 :]

    def made(self, shape: Sequence[int], dtype: np.dtype[Any], other: str) -> str:
        """Return a value of this shape and dtype: one that is there, but `other` seldom, or a constant."""
        found = [each for each in self.names if self.dtype(each) == dtype and self.shape(each) == tuple(shape)]
        found = [each for each in found if each != other or self.chance(0.3)]
        return self.choice(found) if found and self.chance(0.6) else self.constant_of(shape, dtype)

    def resized(self, name: str, axis: int) -> str:
        """Return a value that can be joined with another along an axis."""
        shape = list(self.shape(name))
        found = [
            each
            for each in self.names
            if self.dtype(each) == self.dtype(name) and _without(self.shape(each), axis) == _without(shape, axis)
        ]
        if found and self.chance(0.8):
            return self.choice(found)
        shape[axis] = self.choice((0, 1, 2, 5))
        return self.constant_of(shape, self.dtype(name))

    def constant(self, array: Array) -> str:
        """Return the name of a new initializer."""
        name = self.fresh().replace("v", "c")
        self.constants[name] = np.asarray(array)
        return name

    def constant_of(self, shape: Sequence[int], dtype: np.dtype[Any], *, wide: bool = False) -> str:
        """Return the name of a new initializer of random numbers; of all that the dtype has where `wide`."""
        if wide:
            info = np.iinfo(dtype)
            return self.constant(self.rng.integers(info.min, info.max + 1, shape).astype(dtype))
        return self.constant(drawn(self.rng, shape, dtype))

    def places(self, shape: Sequence[int], size: int) -> str:
        """Return the name of a constant of places along an axis of `size`, some from its end."""
        if not size:
            raise NoValue
        least = -size if self.chance(0.4) else 0
        return self.constant(self.rng.integers(least, size, shape).astype(self.choice((np.int64, np.int64, np.int32))))


def _without(shape: Sequence[int], axis: int) -> list[int]:
    """The sizes but that of an axis, after their number."""
    return [len(shape), *(size for at, size in enumerate(shape) if at != axis % max(1, len(shape)))]


def _broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)
