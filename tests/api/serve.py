"""A real server for tests: `python -m tests.api.serve ENTRY` on a free port, with settings from the environment."""

from __future__ import annotations

import sys
from functools import partial

from service.api.server import run
from service.jobs.backend import Backend

if __name__ == "__main__":
    run("127.0.0.1", 0, open_backend=partial(Backend, entry=sys.argv[1]))
