"""Bytes that no row of the database speaks of: a server was killed between the two, or their last owner lost them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from relaxc.service.config import settings
from relaxc.service.jobs.blobs.local import LocalBlobs
from relaxc.service.jobs.database import clock, orphans
from relaxc.service.jobs.database.engine import Database

__all__ = ["remove_orphans"]

_AT_ONCE = 500


def remove_orphans(database: Database, blobs: LocalBlobs, *, grace_s: float | None = None) -> list[str]:
    """Remove the folders of models, record sets and jobs that are not known; return their names.

    Bytes come before their row, by less than `grace_s`, which is the setting's if None.
    """
    grace_s = settings().orphan_expiry_s if grace_s is None else grace_s
    removed = []
    for kind in orphans.LOCAL:
        before = clock.file_time() - grace_s
        for names in _batches(blobs.root / kind, before):
            with database.read() as connection:
                unknown = orphans.unknown(connection, kind, names)
            for name in unknown:
                path = blobs.root / kind / name
                if _is_old(path, before):  # still: who puts the same bytes again makes their folder young
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(f"{kind}/{name}")
    return removed


def _batches(folder: Path, before: float) -> Iterator[list[str]]:
    old = (path.name for path in folder.glob("*") if _is_old(path, before))
    while names := list(islice(old, _AT_ONCE)):
        yield names


def _is_old(path: Path, before: float) -> bool:
    try:
        return path.stat().st_mtime < before
    except FileNotFoundError:
        return False
