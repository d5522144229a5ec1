"""Why a server cannot take requests now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.migrate import is_current
from relaxc.service.jobs.disks import Disks
from relaxc.service.process.runner import Runner

__all__ = ["reasons"]


def reasons(database: Database, pool: Runner, root: Path, disks: Disks) -> Iterator[str]:
    """Return each reason as a phrase for whoever runs the server; none when all is well."""
    if why := database.ping():
        yield why
    elif not is_current(database):
        yield "the database has the tables of another version of relaxc"
    if not os.access(root, os.W_OK | os.X_OK):
        yield "RELAXC_CACHE_DIR cannot be written"
    if why := disks.short():
        yield why
    workers = pool.ready()
    if not workers:
        yield "no worker is warm yet"
    for flavour, sandbox in workers.items():
        if "error" in sandbox:
            yield f"the {flavour} worker runs no jobs: {sandbox['error']}"
