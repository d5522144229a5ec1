"""Uploaded models: identified in a child, kept by digest, seen by whoever uploaded them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from service.artifact.entry import is_digest, sha256_of
from service.errors import ModelNotFound, StoreUnwritable
from service.jobs.blobs.mirrored import Blobs
from service.jobs.database import models
from service.jobs.database.engine import Database
from service.jobs.database.rows import ModelFile, ModelRow, Owner
from service.jobs.objects.intake import refer
from service.process.pool import Pool
from service.process.workspace import Workspace
from service.request import ModelRef

__all__ = ["MODELS_LOCK", "Models"]

MODELS_LOCK = 2
"""Held while a model's row and its bytes are made to agree: added together, or removed together."""

_TRIES = 3


class Models:
    """The models of every owner; the same content is kept once."""

    def __init__(self, database: Database, blobs: Blobs, pool: Pool, workspace: Workspace) -> None:
        self._database = database
        self._blobs = blobs
        self._pool = pool
        self._workspace = workspace

    def add(self, owner: Owner, folder: Path, model: Path, sha256: str, *, name: str) -> tuple[ModelRow, bool]:
        """Keep the model file `model` of `folder`, whose own SHA-256 is `sha256`, with the external data beside it.

        `folder` stays the caller's, its files may be gone. The bool says whether this owner did not have it. Raises
        what `jobs.intake.refer` raises, and StoreUnwritable.
        """
        reference = refer(self._pool, self._workspace, model, sha256)
        data = sorted(path for path in folder.iterdir() if path != model)
        files = {ModelFile(model.name, model.stat().st_size, sha256): model}
        files |= {ModelFile(path.name, path.stat().st_size, sha256_of(path)): path for path in data}
        size, created = reference.size_bytes, time.time()
        row = ModelRow(owner.id, reference.digest, name, reference.format, size, created, tuple(files))
        for _ in range(_TRIES):
            known = self._files(row.digest) or row.files  # the first sender's: his names, the same content
            self._keep(row.digest, known, {file.sha256: path for file, path in files.items()})
            with self._database.begin() as connection:
                self._database.lock(connection, MODELS_LOCK)
                if all(self._blobs.local.path(_blob(row.digest, file)).is_file() for file in known):
                    added = models.insert(connection, replace(row, files=known))
                    found = models.find(connection, owner.id, row.digest)
                    assert found is not None
                    return found, added
            # Its last owner gave it up meanwhile, and its files were removed.
        raise StoreUnwritable(f"the model {row.digest} cannot be kept: its files disappear")

    def _files(self, digest: str) -> tuple[ModelFile, ...]:
        with self._database.read() as connection:
            found = models.content(connection, digest)
        return () if found is None else found[2]

    def _keep(self, digest: str, wanted: Iterable[ModelFile], sources: Mapping[str, Path]) -> None:
        for file in wanted:
            if self._blobs.find(_blob(digest, file), file.sha256) is None and file.sha256 in sources:
                staged = self._blobs.local.staged()
                try:
                    _link_or_copy(sources[file.sha256], staged)
                    self._blobs.put(_blob(digest, file), staged)
                except OSError as error:
                    raise StoreUnwritable(f"the model cannot be kept: {error.strerror or error}") from error
                finally:
                    staged.unlink(missing_ok=True)

    def get(self, owner: Owner, digest: str) -> ModelRow:
        """Return the owner's model. Raise ModelNotFound, also for what another owner has."""
        with self._database.read() as connection:
            row = models.find(connection, None if owner.admin else owner.id, digest) if is_digest(digest) else None
        if row is None:
            raise _not_found(digest)
        return row

    def list(self, owner: Owner, *, limit: int = 1000) -> list[ModelRow]:
        """Return the owner's models, the newest first; everybody's for an admin."""
        with self._database.read() as connection:
            return models.owned(connection, None if owner.admin else owner.id, limit)

    def remove(self, owner: Owner, digest: str) -> None:
        """Take it from the owner, or from everybody for an admin; jobs that were accepted still run.

        Raise ModelNotFound.
        """
        with self._database.begin() as connection:
            if not models.remove(connection, None if owner.admin else owner.id, digest):
                raise _not_found(digest)

    @contextmanager
    def open(self, digest: str) -> Iterator[ModelRef]:
        """Return the model as files that a child may read, whoever owns it. Raise ModelNotFound when they are gone."""
        with self._database.read() as connection:
            found = models.content(connection, digest)
        if found is None:
            raise _not_found(digest)
        format, size_bytes, files = found
        paths = [path for file in files if (path := self._blobs.find(_blob(digest, file), file.sha256))]
        if len(paths) != len(files):
            raise _not_found(digest)
        yield ModelRef(format, digest, size_bytes, paths[0])

    def sweep(self) -> int:
        """Remove the bytes of models that nobody has and no job needs; return how many models."""
        with self._database.read() as connection:
            unused = models.unused(connection)
        for digest in unused:
            with self._database.begin() as connection:
                self._database.lock(connection, MODELS_LOCK)
                files = models.remove_unused(connection, digest)
                for file in files:
                    self._blobs.local.remove(_blob(digest, file))
            self._remove_mirrored(digest, files)
        return len(unused)

    def _remove_mirrored(self, digest: str, files: Iterable[ModelFile]) -> None:
        """Outside the transaction, which would hold up others; so what somebody has added again is put back."""
        if self._blobs.remote is None:
            return
        for file in files:
            self._blobs.remote.remove(_blob(digest, file))
        for file in self._files(digest):
            self._blobs.remote.put(_blob(digest, file), self._blobs.local.path(_blob(digest, file)))


def _blob(digest: str, file: ModelFile) -> str:
    return f"models/{digest}/{file.name}"


def _link_or_copy(source: Path, target: Path) -> None:
    """A second name of the file, or a copy on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _not_found(digest: str) -> ModelNotFound:
    return ModelNotFound(f"there is no model {digest}", remedy="`GET /v1/models` lists those that your key has.")
