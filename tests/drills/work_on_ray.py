"""The worker of the Ray drill: `python -m tests.drills.work_on_ray KIND`; its nodes are what they are told to be."""

from __future__ import annotations

from functools import partial

from relaxc.service.jobs import on_ray
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.working import work
from tests.api.serve import WithoutTorch
from tests.jobs.conftest import ENTRIES
from tests.ray_nodes import MACHINE

if __name__ == "__main__":
    entries = ENTRIES | {JobKind.TUNE: "tests.drills.entries:tune"}
    on_ray.OnRay = partial(on_ray.OnRay, machine=MACHINE)  # type: ignore[assignment, misc]  # a partial makes one too
    work(open_backend=partial(WithoutTorch, entry="tests.drills.entries:by_seed", entries=entries))
