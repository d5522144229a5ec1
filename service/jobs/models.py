"""Uploaded models: identified in a child, kept by digest, seen by whoever uploaded them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.jobs.database.rows import ModelRow, Owner
from service.request import ModelRef

__all__ = ["Models"]


class Models:
    """The models of every owner; the same content is kept once."""

    def add(self, owner: Owner, folder: Path, model: Path, sha256: str, *, name: str) -> tuple[ModelRow, bool]:
        """Keeps the model file `model` of `folder`, whose own SHA-256 is `sha256`, with the external data beside it.

        The files are moved. The bool says whether this owner did not have it. Raises what `jobs.intake.refer` raises,
        and StoreUnwritable.
        """
        raise NotImplementedError

    def get(self, owner: Owner, digest: str) -> ModelRow:
        """Raises ModelNotFound, also for what another owner has."""
        raise NotImplementedError

    def list(self, owner: Owner, *, limit: int = 1000) -> list[ModelRow]:
        """The owner's, the newest first."""
        raise NotImplementedError

    def remove(self, owner: Owner, digest: str) -> None:
        """The owner has it no more; jobs that were accepted still run. Raises ModelNotFound."""
        raise NotImplementedError

    @contextmanager
    def open(self, digest: str) -> Iterator[ModelRef]:
        """The model as files that a child may read, whoever owns it. Raises ModelNotFound when its bytes are gone."""
        yield from ()
        raise NotImplementedError
