"""Uploads in parts: bytes by announced SHA-256, gone on with after any interruption, dropped when nobody does.

The part's file is its own record: its size is the offset, its age the time of the last byte.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from service.jobs.database.rows import ModelRow, Owner, UploadState

__all__ = ["Part", "Uploads"]


class Part:
    """An upload held open by one sender: `write` in order, then `close`; what was written stays."""

    state: UploadState

    def write(self, data: bytes) -> None:
        """Appends. Raises UploadConflict past the announced total, StoreUnwritable on a full disk."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets others go on with it. May be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Uploads:
    """The uploads of every owner."""

    def state(self, owner: Owner, sha256: str) -> UploadState | None:
        """How much has come; None when nothing has."""
        raise NotImplementedError

    def open(self, owner: Owner, sha256: str, *, offset: int, total: int) -> Part:
        """The upload at `offset`, begun where it is 0 and nothing is there.

        Raises UploadConflict, whose field `offset` says where to go on, when `offset` or `total` is not what is there
        or somebody else sends it now; ModelTooLarge; InvalidOption for what is no digest.
        """
        raise NotImplementedError

    def finish(self, owner: Owner, sha256: str, *, name: str = "model") -> tuple[ModelRow, bool]:
        """Makes a complete upload a model, as `Models.add`. Raises DigestMismatch, after which nothing of it is left,
        and UploadConflict while bytes are missing."""
        raise NotImplementedError

    def remove(self, owner: Owner, sha256: str) -> None:
        """Drops what has come; nothing where nothing has."""
        raise NotImplementedError
