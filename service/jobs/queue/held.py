"""The jobs that run on this server, with their threads and their share of its memory."""

from __future__ import annotations

import threading

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database.claims import Candidate, Lane
from relaxc.service.jobs.job import Claim
from relaxc.service.jobs.queue.budget import Budget
from relaxc.service.jobs.queue.running import Running

__all__ = ["Held"]


class Held:
    """Running jobs by their claims. Any thread may call it."""

    def __init__(self, budget: Budget) -> None:
        """Their memory is taken out of `budget`."""
        self._budget = budget
        self._lock = threading.Lock()
        self._jobs: dict[Claim, tuple[Running, threading.Thread]] = {}

    def add(self, key: Claim, running: Running, thread: threading.Thread) -> None:
        """Hold the job until it is removed."""
        with self._lock:
            self._budget.take(key, running.memory_bytes)
            self._jobs[key] = running, thread

    def remove(self, key: Claim) -> None:
        """Give back what the job had of the memory."""
        with self._lock:
            del self._jobs[key]
            self._budget.release(key)

    def find(self, id: str) -> Running | None:
        """Return the job, where it runs here."""
        return next((running for (job, _), running in self.by_key().items() if job == id), None)

    def by_key(self) -> dict[Claim, Running]:
        """Return the jobs by their claims, in the order in which they began."""
        with self._lock:
            return {key: running for key, (running, _) in self._jobs.items()}

    def threads(self) -> list[threading.Thread]:
        """Return what does the jobs."""
        with self._lock:
            return [thread for _, thread in self._jobs.values()]

    def ids(self) -> set[str]:
        """Return the jobs that run here still, or end: one that was queued again is not begun beside its last claim."""
        return {id for id, _ in self.by_key()}

    def count(self, lane: Lane) -> int:
        """Return how many jobs are in the lane."""
        return sum(running.tunes is lane for running in self.by_key().values())

    def fits(self, job: Candidate, lane: Lane) -> bool:
        """Return whether there is memory for the job."""
        with self._lock:
            freed = sum(running.memory_bytes for running in self._tuning())
            if lane:  # half of the memory stays for what tuning must not hold up, unless there is nothing
                spare = freed + job.memory_bytes <= self._budget.limit_bytes // 2 or not self._jobs
                return spare and self._budget.fits(job.memory_bytes)
            return self._budget.fits(job.memory_bytes)

    def make_way(self, job: Candidate) -> bool:
        """Have as many tunings end as the job needs: first those that end already, then the youngest.

        Returns whether there will be memory for it then; if not, none ends.
        """
        with self._lock:
            tuning = self._tuning()
            if not tuning or not self._budget.fits(job.memory_bytes, freed=sum(each.memory_bytes for each in tuning)):
                return False
            freed, ends = 0, [running for running in tuning if running.cancellation.cancelled]
            for running in (*ends, *(one for one in reversed(tuning) if one not in ends)):
                if self._budget.fits(job.memory_bytes, freed=freed):
                    break
                freed += running.memory_bytes
                running.cancel(ServiceError("tuning gives way to a compile"), give_back=True)
            return True

    def _tuning(self) -> list[Running]:
        return [running for running, _ in self._jobs.values() if running.tunes]
