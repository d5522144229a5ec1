"""The search for the fastest point of one task: asked for points to measure, told how long they took."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from relaxc.service.tuning.cost_model import CostModel
from relaxc.service.tuning.features import features
from relaxc.service.tuning.space import Key, Space

__all__ = ["Search"]

_WHOLE = 16384
"""Points that the model judges one and all; in a larger space it judges those that evolution finds."""
_LEARNING = 12
"""Points measured before the model is asked: the untuned one, hints, its neighbours, and others at random."""
_RANDOM = 0.125
"""Of the points asked for, how many are drawn at random all the same."""
_POPULATION, _GENERATIONS, _PARENTS = 512, 6, 64
_UNSURE = 1.0
"""How many standard deviations of hope a point gets."""


class Search:
    """An evolutionary search with a learned cost model over the points of a template.

    The untuned point comes first, then hints (points that won for similar tasks), then what the model expects to be
    fast. All randomness is from `seed`: the same answers lead to the same questions. No point is asked for twice.
    After Zheng et al., 'Ansor' (2020): evolution from the best that was measured, guided by the model.
    """

    def __init__(
        self,
        choices: Mapping[str, tuple[int, ...]],
        default: Mapping[str, int],
        *,
        seed: int = 0,
        hints: Iterable[Mapping[str, int]] = (),
        points: Sequence[Mapping[str, int]] = (),
    ) -> None:
        self.space = Space.of(choices, points)
        self._rng = random.Random(seed)
        self._model = CostModel(seed)
        self._asked: set[Key] = set()
        self._seconds: dict[Key, float | None] = {}
        self.default = self.space.key(default)
        found = (self.space.nearest(hint) for hint in hints)
        self._first = [self.default, *(key for key in found if key is not None)]
        self.expected: float | None = None
        """The least seconds that the model hopes for at a point not yet asked for; None while it has not been asked."""

    @property
    def exhausted(self) -> bool:
        """Whether every point was asked for."""
        return len(self._asked) >= self.space.size

    @property
    def best(self) -> tuple[dict[str, int], float] | None:
        """The fastest point so far and its seconds."""
        return next(iter(self.fastest(1)), None)

    def fastest(self, count: int) -> list[tuple[dict[str, int], float]]:
        """Return the fastest points so far with their seconds, the best first."""
        measured = self._measured()
        keys = sorted(measured, key=lambda key: (measured[key], key))[:count]
        return [(self.space.point(key), measured[key]) for key in keys]

    def ask(self, count: int) -> list[dict[str, int]]:
        """Return points to measure next, at most `count`; fewer at the end of the space."""
        chosen: list[Key] = []
        for key in self._candidates(count):
            if len(chosen) == count:
                break
            if key not in self._asked:
                self._asked.add(key)
                chosen.append(key)
        return [self.space.point(key) for key in chosen]

    def tell(self, point: Mapping[str, int], seconds: float | None) -> None:
        """Learn that `point` took so long; None where it has no time because it failed."""
        self._seconds[self.space.key(point)] = seconds

    def _measured(self) -> dict[Key, float]:
        return {key: seconds for key, seconds in self._seconds.items() if seconds is not None}

    def _candidates(self, count: int) -> Iterable[Key]:
        """What to ask for, in order, with enough at the end to fill any number."""
        yield from self._first
        if len(self._seconds) < _LEARNING or len(self._measured()) < 2:
            missing = max(0, _LEARNING - len(self._seconds))
            near = self._near(self._first)
            yield from near[: missing // 2]
            yield from self._any(4 * count)
            yield from near
        else:
            ranked = self._ranked()
            lucky = sum(self._rng.random() < _RANDOM for _ in range(count))
            yield from ranked[: count - lucky]
            yield from self._any(4 * lucky)
            yield from ranked
        yield from self._any(64 * count)
        if self.space.size <= _WHOLE:
            yield from self.space

    def _near(self, keys: Sequence[Key]) -> list[Key]:
        found = [near for key in dict.fromkeys(keys) for near in self.space.neighbours(key)]
        self._rng.shuffle(found)
        return found

    def _any(self, count: int) -> list[Key]:
        return [self.space.draw(self._rng) for _ in range(count)]

    def _ranked(self) -> list[Key]:
        """Points not yet asked for, those first of which the model hopes most."""
        measured = self._measured()
        best = min(measured.values())
        keys = list(self._seconds)
        speeds = np.array([best / seconds if (seconds := self._seconds[key]) else 0.0 for key in keys], np.float32)
        self._model.train(features(self.space, keys), speeds)
        candidates = self._unasked(self.space) if self.space.size <= _WHOLE else self._evolved(measured)
        if not candidates:
            self.expected = None
            return []
        speed, unsure = self._model.predict(features(self.space, candidates))
        self.expected = best / max(1e-3, float((speed + _UNSURE * unsure).max()))
        order = np.argsort(-(speed + _UNSURE * unsure), kind="stable")
        return [candidates[i] for i in order]

    def _unasked(self, keys: Iterable[Key]) -> list[Key]:
        return [key for key in keys if key not in self._asked]

    def _evolved(self, measured: Mapping[Key, float]) -> list[Key]:
        """Generations of varied and crossed points, the parents of each those that the model likes best."""
        parents = sorted(measured, key=lambda key: (measured[key], key))[:_PARENTS]
        seen: dict[Key, None] = {}
        for _ in range(_GENERATIONS):
            children = [self._child(parents) for _ in range(_POPULATION)] + self._any(_POPULATION // 8)
            seen.update(dict.fromkeys(self._unasked(children)))
            pool = list(dict.fromkeys([*parents, *children]))
            speed, unsure = self._model.predict(features(self.space, pool))
            parents = [pool[i] for i in np.argsort(-(speed + _UNSURE * unsure), kind="stable")[:_PARENTS]]
        return list(seen)

    def _child(self, parents: Sequence[Key]) -> Key:
        key = self._rng.choice(parents)
        if self._rng.random() < 0.3:
            key = self.space.cross(key, self._rng.choice(parents), self._rng)
        return self.space.vary(key, self._rng)
