"""Who wins: the fastest of a few points that were timed in turns, if it beats the untuned one by more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING

from relaxc.service.tuning.measure.outcome import Outcome

if TYPE_CHECKING:
    from relaxc.schedules.template import Parameters

__all__ = ["Verdict", "judge"]

LEAST_GAIN = 0.01
"""What a winner saves at least: less is within what the place of code and data in memory changes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The point to use, its median seconds, and those of the untuned point and the standing one in the same rounds.

    `won` is False where the untuned point, or the one that stood before, stays.
    """

    point: Parameters
    seconds: float
    untuned_s: float
    standing_s: float
    won: bool


def judge(candidates: Sequence[Outcome], standing: Outcome, untuned: Outcome) -> Verdict | None:
    """Return the verdict over outcomes of one comparison; None where the untuned or the standing point has no time.

    A candidate wins that is faster than `standing`, which is the best so far (`untuned` itself at first), and than
    `untuned`, by more than the noise of their medians. If none does, `standing` stays unless it is slower than
    `untuned` this time: tuned is never slower, and what noise let win once does not stay.
    """
    if untuned.seconds is None or standing.seconds is None:
        return None
    better = [one for one in candidates if _beats(one, standing) and _beats(one, untuned)]
    best = min(better, key=lambda one: one.seconds or 0.0, default=None)
    if best is None or best.seconds is None:
        stays = standing if standing.seconds < untuned.seconds else untuned
        return Verdict(stays.point, stays.seconds or 0.0, untuned.seconds, standing.seconds, won=False)
    return Verdict(best.point, best.seconds, untuned.seconds, standing.seconds, won=True)


def _beats(one: Outcome, other: Outcome) -> bool:
    """Whether the median is lower by over two standard errors of the difference, and by `LEAST_GAIN`."""
    if one.seconds is None or other.seconds is None:
        return False
    return one.seconds < other.seconds * (1 - max(LEAST_GAIN, 2 * hypot(one.error, other.error)))
