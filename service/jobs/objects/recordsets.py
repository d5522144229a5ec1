"""Record sets: the texts of tuning records by digest, seen by whoever made or sent them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from relaxc.service.artifact.entry import is_digest
from relaxc.service.errors import InvalidRecords, RecordsNotFound
from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.database import clock, records
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import Owner, RecordsRow
from relaxc.service.records import files

__all__ = ["RecordSets"]


class RecordSets:
    """Every owner's record sets, in the form of docs/tuning.md."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs

    def add(self, owner: Owner, text: bytes, *, name: str, job: str | None = None) -> tuple[RecordsRow, bool]:
        """Keep it for `owner`; return also whether this owner did not have it. Raise what `keep` raises."""
        row = self.keep(owner, text, name=name, job=job)
        with self._database.begin() as connection:
            records.admit(connection, row)
            created = records.insert(connection, row)
        return self.get(owner, row.digest), created

    def keep(self, owner: Owner, text: bytes, *, name: str, job: str | None = None) -> RecordsRow:
        """Keep its bytes alone; return the row that makes it the owner's.

        Its digest is that of its canonical text, so that the same records in another order are the same set. Raise
        InvalidRecords for a line that is no record or breaks off and for a set without any, StoreUnwritable, and
        StorageQuotaExceeded, after which nothing is kept.
        """
        row, canonical = _read(owner, text, name, job)
        with self._database.begin() as connection:
            records.admit(connection, row)
        self._blobs.put_bytes(_blob(row.digest), canonical)
        return row

    def get(self, owner: Owner, digest: str) -> RecordsRow:
        """Return the owner's record set. Raise RecordsNotFound, also for another owner's."""
        with self._database.read() as connection:
            row = records.find(connection, None if owner.admin else owner.id, digest) if is_digest(digest) else None
        if row is None:
            raise _not_found(digest)
        return row

    def read(self, owner: Owner, digest: str) -> bytes:
        """Return its text. Raise RecordsNotFound."""
        self.get(owner, digest)
        return self.path(digest).read_bytes()

    def remove(self, owner: Owner, digest: str) -> None:
        """Take it from the owner, or from everybody for an admin. Raise RecordsNotFound."""
        with self._database.begin() as connection:
            if not records.remove(connection, None if owner.admin else owner.id, digest):
                raise _not_found(digest)

    def path(self, digest: str) -> Path:
        """Return the file of a record set, whoever owns it. Raise RecordsNotFound when its bytes are gone."""
        path = self._blobs.find(_blob(digest), digest)
        if path is None:
            raise _not_found(digest)
        return path

    def list(self, owner: Owner, *, limit: int = 1000) -> list[RecordsRow]:
        """Return the owner's record sets, the newest first; everybody's for an admin."""
        with self._database.read() as connection:
            return records.owned(connection, None if owner.admin else owner.id, limit)


def _read(owner: Owner, text: bytes, name: str, job: str | None) -> tuple[RecordsRow, bytes]:
    """The row of the set, and its canonical text."""
    found = files.parse(text, "records")
    if not len(found):
        raise InvalidRecords("the record set has no records")
    canonical = "".join(f"{record.to_json()}\n" for record in found).encode()
    digest, now = hashlib.sha256(canonical).hexdigest(), clock.now()
    return RecordsRow(owner.id, digest, name, len(found), len(canonical), now, now, job), canonical


def _blob(digest: str) -> str:
    return f"records/{digest}/records{files.SUFFIX}"


def _not_found(digest: str) -> RecordsNotFound:
    return RecordsNotFound(f"there is no record set {digest}", digest=digest)
