"""The places of the queue, shared so that no owner, and no few of them, shut out the others."""

from __future__ import annotations

from relaxc.service.errors import Busy
from relaxc.service.jobs.database.rows import LOCAL_OWNER

__all__ = ["admit"]

_KEPT = 8
"""One of so many places is for owners who have none."""


def admit(owner: str, mine: int, waiting: int, places: int) -> None:
    """Raise Busy where an owner with so many waiting jobs may have no further one of the `places`, `waiting` taken.

    Who has some gets another while it has fewer than are free, and more are free than the eighth that is kept for who
    has none: with 64 places 32 for who comes first, 16 for the second, 8 for the third, one each for the next eight.
    (Dynamic thresholds: Choudhury and Hahne, 1998.) `k_local` is alone, and may have all.
    """
    free = places - waiting
    if free > 0 and (mine == 0 or owner == LOCAL_OWNER.id or (mine < free and free > places // _KEPT)):
        return
    whose = f", {mine} of this owner" if mine else ""
    raise Busy(
        f"{waiting} jobs wait already{whose}, in a queue for {places}",
        waiting=waiting,
        limit=places,
        mine=mine,
        retry_after_s=min(60, 1 + waiting),
    )
