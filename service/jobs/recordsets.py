"""Record sets: the texts of tuning records by digest, seen by whoever made or sent them."""

from __future__ import annotations

from service.jobs.database.rows import Owner, RecordsRow

__all__ = ["RecordSets"]


class RecordSets:
    """Every owner's record sets, in the form of docs/tuning.md."""

    def add(self, owner: Owner, text: bytes, *, name: str, job: str | None = None) -> tuple[RecordsRow, bool]:
        """Keeps it; the bool says whether this owner did not have it. Raises InvalidOption for what has no records."""
        raise NotImplementedError

    def get(self, owner: Owner, digest: str) -> RecordsRow:
        """Raises RecordsNotFound, also for another owner's."""
        raise NotImplementedError

    def read(self, owner: Owner, digest: str) -> bytes:
        """Its text. Raises RecordsNotFound."""
        raise NotImplementedError

    def list(self, owner: Owner, *, limit: int = 1000) -> list[RecordsRow]:
        """The owner's, the newest first."""
        raise NotImplementedError
