"""The server of a drill: `python -m tests.drills.serve PORT`, 0 for a free one, with settings from the environment."""

from __future__ import annotations

import sys
from functools import partial

from service.api.server import run
from tests.api.serve import WithoutTorch
from tests.jobs.conftest import ENTRIES

if __name__ == "__main__":
    opened = partial(WithoutTorch, entry="tests.drills.entries:by_seed", entries=ENTRIES)
    run("127.0.0.1", int(sys.argv[1]), open_backend=opened)
