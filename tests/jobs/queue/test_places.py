"""Places in the queue: an owner alone has half, several leave one another room, and one each is kept for the others."""

from __future__ import annotations

from collections import Counter

import pytest

from relaxc.service.errors import Busy
from relaxc.service.jobs.queue.places import admit


def take_all(queue: Counter[str], owner: str, places: int) -> int:
    """How many places the owner gets that takes all it can, beside those of others."""
    while True:
        try:
            admit(owner, queue[owner], queue.total(), places)
        except Busy:
            return queue[owner]
        queue[owner] += 1


@pytest.mark.parametrize(
    ("places", "first"), [(64, [32, 16, 8, 1, 1, 1, 1, 1, 1, 1, 1, 0]), (16, [8, 4, 2, 1, 1, 0]), (1, [1, 0])]
)
def test_who_takes_all_it_can_leaves_places_to_others(places: int, first: list[int]) -> None:
    queue: Counter[str] = Counter()
    assert [take_all(queue, f"o_{number}", places) for number in range(len(first))] == first
    assert queue.total() == places


def test_as_many_owners_as_places_are_kept_come_in_whatever_two_have_done() -> None:
    queue: Counter[str] = Counter()
    for _ in range(100):  # by turns, as often as they like
        for owner in ("o_ann", "o_bob"):
            take_all(queue, owner, 64)
    for number in range(8):
        assert take_all(queue, f"o_{number}", 64) >= 1


def test_who_is_alone_has_all(places: int = 5) -> None:
    assert take_all(Counter(), "k_local", places) == places
