"""Objects of the bucket that no row names: removed where a setting says that the bucket is this database's alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from relaxc.service.artifact.entry import is_digest
from relaxc.service.config import settings
from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.blobs.s3 import Listed, S3Blobs
from relaxc.service.jobs.database import clock, orphans
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.queue.retention import Place, Removed

__all__ = ["BucketSweep"]

_LOG = logging.getLogger("relaxc.retention")
_PAGES = 20
"""Of a thousand objects, in one call: what is left is looked at by the next."""

_KEYS = "keys"


class BucketSweep:
    """One server's way through the bucket: again and again, with RELAXC_BUCKET_SWEEP_S between two rounds."""

    def __init__(self, database: Database, blobs: Blobs, removed: Removed) -> None:
        self._database = database
        self._blobs = blobs
        self._removed = removed
        self._after = ""
        self._next_round = 0.0

    def __call__(self) -> None:
        """Look at the next objects, and remove those that are old and that no row names. Raise StoreUnwritable."""
        remote, pause_s = self._blobs.remote, settings().bucket_sweep_s
        if remote is None or not pause_s or time.monotonic() < self._next_round:
            return
        for _ in range(_PAGES):
            found = remote.names(self._after)
            self._remove(remote, found)
            if not found:
                self._after, self._next_round = "", time.monotonic() + pause_s
                return
            self._after = found[-1].name

    def _remove(self, remote: S3Blobs, found: Iterable[Listed]) -> None:
        before = clock.file_time() - settings().orphan_expiry_s
        old: dict[str, dict[str, list[str]]] = {}
        for each in found:
            kind, _, rest = each.name.partition("/")
            id = rest.partition("/")[0]
            if each.modified < before and id:
                old.setdefault(kind, {}).setdefault(id, []).append(each.name)
        for kind, names in old.items():
            for id in self._unknown(remote, kind, names):
                for name in names[id]:
                    remote.remove(name)
                _LOG.info("%s/%s of the bucket is nobody's", kind, id)
                self._removed.add(Place.BUCKET, kind)

    def _unknown(self, remote: S3Blobs, kind: str, names: dict[str, list[str]]) -> list[str]:
        """The ids that no row has. A key is known by the artifact that it leads to."""
        if kind == _KEYS:
            led = {id: self._artifact_of(remote, paths[0]) for id, paths in names.items()}
            gone = set(self._missing("artifacts", sorted(set(led.values()))))
            return [id for id, digest in led.items() if digest in gone]
        return self._missing(kind, sorted(names)) if kind in orphans.KINDS else []

    def _missing(self, kind: str, names: list[str]) -> list[str]:
        with self._database.read() as connection:
            return orphans.unknown(connection, kind, names)

    def _artifact_of(self, remote: S3Blobs, name: str) -> str:
        digest = (remote.read(name) or b"").decode(errors="replace").strip()
        return digest if is_digest(digest) else ""
