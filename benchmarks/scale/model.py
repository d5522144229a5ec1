"""A closed queueing network: workers that compute by themselves, and ask one database in between.

Exact mean value analysis (Reiser and Lavenberg, 1980) of one class: each worker is a customer that thinks for
`think_s`, which is the job, and then visits every station for its `demand_s`. A station has one server; where it has
several, a share of the demand is queued for and the rest is delay (Seidmann's approximation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Solution", "Station", "saturation", "solve"]


@dataclass(frozen=True, slots=True)
class Station:
    """What one job takes of it, on each of so many servers."""

    name: str
    demand_s: float
    servers: int = 1

    @property
    def queued_s(self) -> float:
        """The part for which others wait."""
        return self.demand_s / self.servers

    @property
    def delay_s(self) -> float:
        """The part for which they do not."""
        return self.demand_s - self.queued_s


@dataclass(frozen=True, slots=True)
class Solution:
    """So many workers: jobs a second, and how busy each station is."""

    workers: int
    per_s: float
    busy: Mapping[str, float]

    @property
    def first(self) -> str:
        """The station that is the busiest."""
        return max(self.busy, key=lambda name: self.busy[name])


def solve(workers: Sequence[int], think_s: float, stations: Sequence[Station]) -> list[Solution]:
    """Return the solution for each number of workers, which rise."""
    waiting = {station.name: 0.0 for station in stations}
    delay_s = think_s + sum(station.delay_s for station in stations)
    found = []
    for customers in range(1, workers[-1] + 1):
        times = {each.name: each.queued_s * (1.0 + waiting[each.name]) for each in stations}
        per_s = customers / (delay_s + sum(times.values()))
        waiting = {name: per_s * time for name, time in times.items()}
        if customers in workers:
            busy = {each.name: per_s * each.queued_s for each in stations}
            found.append(Solution(customers, per_s, busy))
    return found


def saturation(think_s: float, stations: Sequence[Station]) -> tuple[str, float, float]:
    """Return the station that saturates first, the workers at the knee, and the jobs a second that it bears.

    The knee is where the two asymptotes meet: workers / (think + all demands), and 1 / the largest demand.
    """
    first = max(stations, key=lambda each: each.queued_s)
    whole_s = think_s + sum(each.demand_s for each in stations)
    return first.name, whole_s / first.queued_s, 1.0 / first.queued_s
