"""A real server for tests: `python -m tests.api.serve ENTRY` on a free port, with settings from the environment.

`--check=ENTRY` is what a child runs that looks at an upload.
"""

from __future__ import annotations

import sys
from functools import partial

from relaxc.service.api.server import run
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.objects import intake
from relaxc.service.jobs.once import COMPILE_ENTRY
from relaxc.service.process import flavour_zygote
from relaxc.service.process.task import Flavour
from tests.jobs.light_worker import BY_SEED, light_zygote


class WithoutTorch(Backend):
    """For entries that are no compile: a worker that imports torch would only take time from the test."""

    def warm(self) -> None:
        """Starts one worker of the two."""
        self.pool.warm(Flavour.ONNX)


if __name__ == "__main__":
    entry = sys.argv[1]
    if entry == BY_SEED:
        flavour_zygote.Zygote = light_zygote  # type: ignore[assignment, misc]  # as it starts one
    for option in sys.argv[2:]:
        if option.startswith("--check="):
            intake.CHECK_ENTRY = option.removeprefix("--check=")
    kind = Backend if entry == COMPILE_ENTRY else WithoutTorch
    run("127.0.0.1", 0, open_backend=partial(kind, entry=entry), no_auth="--no-auth" in sys.argv)
