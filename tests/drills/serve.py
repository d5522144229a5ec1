"""The server of a drill: `python -m tests.drills.serve PORT`, 0 for a free one, with settings from the environment."""

from __future__ import annotations

import sys
from functools import partial

from relaxc.service.api.server import run
from relaxc.service.jobs.database.rows import JobKind
from tests.api.serve import WithoutTorch
from tests.jobs.conftest import ENTRIES

if __name__ == "__main__":
    entries = ENTRIES | {JobKind.TUNE: "tests.drills.entries:tune"}
    opened = partial(WithoutTorch, entry="tests.drills.entries:by_seed", entries=entries)
    run("127.0.0.1", int(sys.argv[1]), open_backend=opened)
