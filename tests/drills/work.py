"""The worker of a drill, `python -m tests.drills.work KIND`: one of `tests.jobs.workers.kinds`, wherever it runs."""

from __future__ import annotations

import sys
from functools import partial

from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.working import work
from relaxc.service.process import flavour_zygote
from tests.api.serve import WithoutTorch
from tests.jobs.conftest import ENTRIES
from tests.jobs.light_worker import light_zygote
from tests.jobs.workers.kinds import BY_NAME

if __name__ == "__main__":
    flavour_zygote.Zygote = light_zygote  # type: ignore[assignment, misc]  # as it starts one
    entries = ENTRIES | {JobKind.TUNE: "tests.drills.entries:tune"}
    opened = partial(WithoutTorch, entry="tests.drills.entries:by_seed", entries=entries, machine=BY_NAME[sys.argv[1]])
    work(open_backend=opened)
