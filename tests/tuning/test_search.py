"""The search finds what random draws do not, never asks twice, and repeats itself from its seed."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import numpy as np
import pytest

from relaxc.service.tuning.features import features
from relaxc.service.tuning.search import Search
from relaxc.service.tuning.space import Space
from tests.tuning.synthetic import CHOICES, DEFAULT, seconds_of

LEAST = min(seconds_of(dict(zip(CHOICES, values, strict=True))) for values in product(*CHOICES.values()))


def trials(search: Search, count: int) -> list[dict[str, int]]:
    asked: list[dict[str, int]] = []
    while len(asked) < count and (points := search.ask(min(8, count - len(asked)))):
        for point in points:
            search.tell(point, seconds_of(point))
        asked += points
    return asked


@pytest.mark.parametrize("seed", range(3))
def test_64_trials_come_within_a_twentieth_of_the_best_of_31360_points(seed: int) -> None:
    asked = trials(Search(CHOICES, DEFAULT, seed=seed), 64)
    assert min(map(seconds_of, asked)) < 1.05 * LEAST


def test_a_large_space_is_searched_by_evolution() -> None:
    large = {**CHOICES, "rows": tuple(range(1, 33))}
    assert prod(map(len, large.values())) > 16384
    search = Search(large, DEFAULT)
    trials(search, 64)
    assert search.best is not None
    assert search.best[1] < 1.08 * LEAST


def test_the_untuned_point_is_the_first() -> None:
    assert Search(CHOICES, DEFAULT).ask(3)[0] == DEFAULT


def test_hints_come_next_at_the_nearest_point_of_this_space() -> None:
    hints = ({**DEFAULT, "tiles": 100, "rows": 20}, {"other": 1})
    assert Search(CHOICES, DEFAULT, hints=hints).ask(2)[1] == {**DEFAULT, "tiles": 128, "rows": 14}


def test_a_seed_repeats_its_search_and_another_makes_another() -> None:
    first, again, other = (trials(Search(CHOICES, DEFAULT, seed=seed), 48) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_no_point_is_asked_for_twice_and_a_small_space_to_its_end() -> None:
    small = {"rows": (1, 2, 4, 7), "vectors": (1, 2), **{name: (DEFAULT[name],) for name in list(CHOICES)[2:]}}
    search = Search(small, DEFAULT)
    asked = trials(search, 100)
    assert len(asked) == len({tuple(sorted(point.items())) for point in asked}) == 8
    assert search.exhausted
    assert search.ask(8) == []


def test_failures_are_no_best_and_teach_the_model() -> None:
    search = Search(CHOICES, DEFAULT)
    asked = []
    for _ in range(8):
        for point in search.ask(8):
            asked.append(point)
            search.tell(point, None if point["vectors"] > 2 else seconds_of(point))
    assert search.best is not None
    assert search.best[0]["vectors"] <= 2
    assert sum(point["vectors"] > 2 for point in asked[24:]) < 0.35 * len(asked[24:])


def test_a_search_of_failures_alone_goes_on() -> None:
    search = Search(CHOICES, DEFAULT)
    for _ in range(4):
        points = search.ask(8)
        assert len(points) == 8
        for point in points:
            search.tell(point, None)
    assert search.best is None


def test_a_point_is_its_key_and_back() -> None:
    space = Space.of(CHOICES)
    rng = random.Random(0)
    for _ in range(50):
        key = space.draw(rng)
        assert space.key(space.point(key)) == key
        varied = space.vary(key, rng)
        assert sum(a != b for a, b in zip(key, varied, strict=True)) == 1
    with pytest.raises(ValueError, match="parameters are"):
        space.key({"rows": 1})


def test_a_space_without_choice_has_one_point() -> None:
    space = Space.of({})
    assert (space.size, list(space), space.vary((), random.Random(0))) == (1, [()], ())
    with pytest.raises(ValueError, match="no values"):
        Space.of({"rows": ()})


def test_features_hold_values_logarithms_products_and_ratios() -> None:
    space = Space.of({"a": (2, 4), "b": (8,), "c": (0, 1)})
    (row,) = features(space, [space.key({"a": 4, "b": 8, "c": 0})])
    assert np.array_equal(row, [4, 0, 2, -1, 1, 3])
