"""How many jobs a server or worker runs at once, and what it needs for that."""

from __future__ import annotations

from relaxc.service.config import settings
from relaxc.service.jobs.workers.fleet import Role

__all__ = ["connections_of", "slots_of", "tunes_alone"]

_SERVER_CONNECTIONS, _WORKER_CONNECTIONS, _SLOTS_A_CONNECTION = 16, 2, 4


def slots_of(role: Role, workers: int | None, tune_workers: int | None) -> dict[bool, int]:
    """Return how many jobs other than tunings (False), and how many tunings, run at once; None is the setting's."""
    values = settings()
    jobs_slots = values.workers if workers is None else workers
    tune_slots = values.tune_workers if tune_workers is None else tune_workers
    return {False: jobs_slots, True: 0 if role is Role.SERVER and not jobs_slots else tune_slots}


def tunes_alone(role: Role) -> bool:
    """Return whether nothing else runs beside a tuning, by the setting or by the role."""
    asked = settings().tune_alone
    return role is Role.WORKER if asked is None else asked


def connections_of(role: Role, slots: int) -> int:
    """Return how many connections to the database it takes, the setting or what the role needs.

    A transaction takes milliseconds: a server has many callers at once, a worker few threads.
    """
    needed = _SERVER_CONNECTIONS if role is Role.SERVER else _WORKER_CONNECTIONS + slots // _SLOTS_A_CONNECTION
    return settings().database_connections or needed
