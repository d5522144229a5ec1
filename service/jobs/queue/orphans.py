"""Bytes that no row of the database speaks of: a server was killed between the two, whichever it wrote first."""

from __future__ import annotations

import shutil
import time

from service.jobs.blobs.local import LocalBlobs
from service.jobs.database import orphans
from service.jobs.database.engine import Database

__all__ = ["remove_orphans"]

_GRACE_S = 3600.0
"""Bytes come before their row, by less than this."""


def remove_orphans(database: Database, blobs: LocalBlobs, *, grace_s: float = _GRACE_S) -> list[str]:
    """Remove the folders of models, record sets and jobs that are not known; return their names."""
    removed = []
    for kind in orphans.KINDS:
        root, before = blobs.root / kind, time.time() - grace_s
        old = [folder.name for folder in root.glob("*") if folder.stat().st_mtime < before]
        with database.read() as connection:
            unknown = orphans.unknown(connection, kind, old)
        for name in unknown:
            shutil.rmtree(root / name, ignore_errors=True)
            removed.append(f"{kind}/{name}")
    return removed
