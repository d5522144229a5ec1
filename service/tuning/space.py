"""The points of a template: counted, drawn at random, varied, and found near a point of another space."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, log2, prod

__all__ = ["Key", "Space"]

Key = tuple[int, ...]
"""A point: for each parameter, in the order of `Space.names`, the place of its value in `Space.values`."""

_NEXT_VALUE = 0.7
"""Of the variations of a parameter, how many take the next larger or smaller value."""


_AROUND = 8
"""Listed points that count as near to one."""


@dataclass(frozen=True)
class Space:
    """Every combination of the values of named parameters; values ascend, names are sorted."""

    names: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    listed: tuple[Key, ...] = ()
    """The points that there are, where they are not all combinations."""

    @staticmethod
    def of(choices: Mapping[str, tuple[int, ...]], points: Sequence[Mapping[str, int]] = ()) -> Space:
        """Return the space of a template's `choices`, or of `points`. Raise ValueError if a parameter has no values."""
        names = tuple(sorted(choices))
        values = tuple(tuple(sorted(set(choices[name]))) for name in names)
        if not all(values):
            raise ValueError(f"a parameter has no values: {dict(zip(names, values, strict=True))}")
        every = Space(names, values)
        return Space(names, values, tuple(every.key(point) for point in points))

    @property
    def size(self) -> int:
        """The number of points; 1 where there is nothing to choose."""
        return len(self.listed) or prod(map(len, self.values))

    def __iter__(self) -> Iterator[Key]:
        if self.listed:
            return iter(self.listed)
        return product(*(range(len(values)) for values in self.values))

    def point(self, key: Key) -> dict[str, int]:
        """Return the values by name."""
        return {name: values[i] for name, values, i in zip(self.names, self.values, key, strict=True)}

    def key(self, point: Mapping[str, int]) -> Key:
        """Return the inverse of `point`. Raise ValueError for one that is not in the space."""
        if set(point) != set(self.names):
            raise ValueError(f"the parameters are {', '.join(self.names)}, not {', '.join(point)}")
        key = tuple(values.index(point[name]) for name, values in zip(self.names, self.values, strict=True))
        if self.listed and key not in self.listed:
            raise ValueError(f"{dict(point)} is not in the space")
        return key

    def nearest(self, point: Mapping[str, int]) -> Key | None:
        """Return the point with the values nearest by ratio; None where the parameters are others."""
        if set(point) != set(self.names):
            return None
        return self._listed_near(
            tuple(_nearest(values, point[name]) for name, values in zip(self.names, self.values, strict=True))
        )

    def draw(self, rng: random.Random) -> Key:
        """Any point, each as likely as another."""
        if self.listed:
            return rng.choice(self.listed)
        return tuple(rng.randrange(len(values)) for values in self.values)

    def vary(self, key: Key, rng: random.Random) -> Key:
        """Return `key` with another value of one parameter, mostly the next one; itself where nothing can be chosen."""
        free = [axis for axis, values in enumerate(self.values) if len(values) > 1]
        if not free:
            return key
        if self.listed:
            return rng.choice(self._around(key) or [key])
        axis = rng.choice(free)
        return (*key[:axis], _other(key[axis], len(self.values[axis]), rng), *key[axis + 1 :])

    def cross(self, first: Key, second: Key, rng: random.Random) -> Key:
        """Take each parameter from one of the two."""
        return self._listed_near(tuple(rng.choice(pair) for pair in zip(first, second, strict=True)))

    def neighbours(self, key: Key) -> list[Key]:
        """Return the points whose values differ by one step of one parameter; the nearest of those that are listed."""
        if self.listed:
            return self._around(key)
        return [
            (*key[:axis], place, *key[axis + 1 :])
            for axis, values in enumerate(self.values)
            for place in (key[axis] - 1, key[axis] + 1)
            if 0 <= place < len(values)
        ]

    def _around(self, key: Key) -> list[Key]:
        """The listed points that differ least from `key`."""
        others = [other for other in self.listed if other != key]
        return sorted(others, key=lambda other: (self._apart(key, other), other))[:_AROUND]

    def _listed_near(self, key: Key) -> Key:
        """`key`, or the listed point that differs least from it."""
        return min(self.listed, key=lambda other: (self._apart(key, other), other)) if self.listed else key

    def _apart(self, one: Key, other: Key) -> float:
        """The sum of the steps between two points, each by the steps that there are."""
        steps = zip(one, other, self.values, strict=True)
        return sum(abs(a - b) / max(1, len(values) - 1) + (a != b) for a, b, values in steps)


def _nearest(values: tuple[int, ...], value: int) -> int:
    def distance(place: int) -> float:
        if values[place] == value:
            return 0.0
        return abs(log2(values[place] / value)) if values[place] > 0 < value else inf

    return min(range(len(values)), key=distance)


def _other(place: int, count: int, rng: random.Random) -> int:
    steps = [other for other in (place - 1, place + 1) if 0 <= other < count]
    if rng.random() < _NEXT_VALUE:
        return rng.choice(steps)
    return rng.choice([other for other in range(count) if other != place])
