"""Timed kernels and builders never share a core."""

from __future__ import annotations

import pytest

from relaxc.service.tuning.measure.placement import Placement, place


def pairs(core: int) -> set[int]:
    """Two hardware threads a core: 0 and 4, 1 and 5, ..."""
    return {core % 4, core % 4 + 4}


@pytest.mark.parametrize(
    ("threads", "cores", "timed", "building", "overlap"),
    [
        (1, {0, 1}, {0}, {1}, True),
        (2, {0, 1}, {0, 1}, {0, 1}, False),
        (8, {0, 1}, {0, 1}, {0, 1}, False),
        (1, {3}, {3}, {3}, False),
        (2, {2, 3, 5, 7}, {2, 3}, {5, 7}, True),
    ],
)
def test_cores_of_their_own(threads: int, cores: set[int], timed: set[int], building: set[int], overlap: bool) -> None:
    found = place(threads, frozenset(cores), lambda core: {core})
    assert found == Placement(frozenset(timed), frozenset(building), overlap)


@pytest.mark.parametrize(
    ("threads", "timed", "building"),
    [(1, {0}, {1, 2, 3, 5, 6, 7}), (3, {0, 1, 2}, {3, 7}), (4, set(range(8)), set(range(8)))],
)
def test_nothing_is_built_beside_a_timed_hardware_thread(threads: int, timed: set[int], building: set[int]) -> None:
    found = place(threads, frozenset(range(8)), pairs)
    assert (set(found.timed), set(found.building)) == (timed, building)
    assert found.overlap == (threads < 4)


def test_this_machine() -> None:
    found = place(1)
    assert found.timed and found.building
    assert found.overlap == (not found.timed & found.building)
