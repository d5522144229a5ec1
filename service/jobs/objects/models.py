"""Uploaded models: kept by the digest of what came, once a child has looked at them, seen by whoever uploaded them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from relaxc.service.artifact.entry import is_digest, sha256_of
from relaxc.service.errors import ModelNotFound, StoreUnwritable
from relaxc.service.frontend.model_file import only_format
from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.database import clock, models, quotas, uploads
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.models import Content
from relaxc.service.jobs.database.rows import ModelFile, ModelRow, Owner
from relaxc.service.jobs.objects.intake import Sent, check, memory_to_check
from relaxc.service.process.runner import Runner
from relaxc.service.process.workspace import Workspace
from relaxc.service.request import ModelRef

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["MODELS_LOCK", "Models"]

MODELS_LOCK = 2
"""Held while a model's row and its bytes are made to agree: added together, or removed together."""

_TRIES = 3


class Models:
    """The models of every owner; the same content is kept once."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        pool: Runner,
        workspace: Workspace,
        lend: Callable[[int], AbstractContextManager[None]] = lambda size_bytes: nullcontext(),
    ) -> None:
        """`lend` gives the memory that looking at a model may take, once there is so much."""
        self._database = database
        self._blobs = blobs
        self._pool = pool
        self._workspace = workspace
        self._lend = lend

    def add(self, owner: Owner, sent: Sent, *, name: str, upload: str = "") -> tuple[ModelRow, bool]:
        """Keep the model that came, after a child has looked at it; `upload` kept room for it, which ends now.

        The files stay the caller's, and may be gone. The bool says whether this owner did not have it. Raises what
        `jobs.intake.check` raises, StoreUnwritable, and StorageQuotaExceeded.
        """
        format, digest, files = sent.format, sent.digest, sent.files
        size, created = sum(file.size_bytes for file in files), clock.now()
        with self._database.begin() as connection:  # nothing is kept of what does not fit
            _admit(connection, owner, digest, size, upload)
            if upload:
                uploads.put(connection, owner.id, upload, size)
        with self._lend(memory_to_check(size)):
            check(self._pool, self._workspace, sent.path)
        row = ModelRow(owner.id, digest, name, format, size, created, created, tuple(files))
        sources = {file.sha256: path for file, path in files.items()}
        for _ in range(_TRIES):
            known = self._content(digest) or Content(format, size, row.files, _folder(digest))
            self._keep(known, sources)
            with self._database.begin() as connection:
                quotas.hold(connection, owner.id)
                self._database.lock(connection, MODELS_LOCK)
                if all(self._blobs.local.path(name).is_file() for name in _blobs(known).values()):
                    _admit(connection, owner, digest, size, upload)
                    uploads.remove(connection, owner.id, upload)
                    added = models.insert(connection, replace(row, files=known.files), known.folder)
                    found = models.find(connection, owner.id, digest)
                    assert found is not None
                    return found, added
            # Its last owner gave it up meanwhile, and its files were removed.
        raise StoreUnwritable(f"the model {digest} cannot be kept: its files disappear")

    def _content(self, digest: str) -> Content | None:
        with self._database.read() as connection:
            return models.content(connection, digest)

    def _keep(self, wanted: Content, sources: Mapping[str, Path]) -> None:
        for file, name in _blobs(wanted).items():
            if self._blobs.find(name, file.sha256) is None and file.sha256 in sources:
                staged = self._blobs.local.staged()
                try:
                    _link_or_copy(sources[file.sha256], staged)
                    if sha256_of(staged) != file.sha256:
                        raise StoreUnwritable("the model cannot be kept: it is not any more what came")
                    self._blobs.put(name, staged)
                except OSError as error:
                    raise StoreUnwritable(f"the model cannot be kept: {error.strerror or error}") from error
                finally:
                    staged.unlink(missing_ok=True)

    def get(self, owner: Owner, digest: str) -> ModelRow:
        """Return the owner's model, by its digest or an alias. Raise ModelNotFound, also for what another owner has."""
        with self._database.read() as connection:
            row = models.find(connection, None if owner.admin else owner.id, digest) if is_digest(digest) else None
        if row is None:
            raise _not_found(digest)
        return row

    def is_whole(self, digest: str) -> bool:
        """Return whether all bytes of the model are here, or in the bucket, and right; what is damaged is put aside."""
        found = self._content(digest)
        return found is not None and len(self._paths(found)) == len(found.files)

    def scrub(self) -> Iterator[bool]:
        """Hash the files of every model that are on this host anew; yield of each whether they are right."""
        with self._database.read() as connection:
            digests = models.digests(connection)
        for digest in digests:
            found = self._content(digest)
            if found is not None:
                names = _blobs(found).items()
                are_right = [self._blobs.scrub(name, file.sha256) for file, name in names]  # every file is looked at
                yield all(are_right)

    def _paths(self, content: Content) -> list[Path]:
        names = _blobs(content).items()
        return [path for file, name in names if (path := self._blobs.find(name, file.sha256))]

    def aliases(self, owner: Owner | None, digest: str) -> tuple[str, ...]:
        """Return the digests by which the owner, or anybody, had this model before they were the server's own."""
        with self._database.read() as connection:
            return models.aliases(connection, None if owner is None else owner.id, digest)

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
        """Return the model as files that a child may read, whoever owns it, hashed before.

        Raise ModelNotFound when they are gone or damaged.
        """
        found = self._content(digest)
        if found is None:
            raise _not_found(digest)
        paths = self._paths(found)
        if len(paths) != len(found.files):
            gone = f"the bytes of model {digest} are gone or damaged"
            raise ModelNotFound(gone, remedy="Upload the model again: that repairs it for everybody who has it.")
        # By its first bytes: what the row says of a model from before 0003 was a child's word.
        yield ModelRef(only_format(paths[0]), digest, found.size_bytes, paths[0])

    def sweep(self) -> Sequence[Content]:
        """Remove the bytes of models that nobody has and no job needs; return these models."""
        with self._database.read() as connection:
            unused = models.unused(connection)
        removed = []
        for digest in unused:
            with self._database.begin() as connection:
                self._database.lock(connection, MODELS_LOCK)
                gone = models.remove_unused(connection, digest)
                names = [] if gone is None else list(_blobs(gone).values())
                for name in names:
                    self._blobs.local.remove(name)
            self._remove_mirrored(digest, names)
            removed += [] if gone is None else [gone]
        return removed

    def _remove_mirrored(self, digest: str, names: Iterable[str]) -> None:
        """Outside the transaction, which would hold up others; so what somebody has added again is put back."""
        if self._blobs.remote is None:
            return
        for name in names:
            self._blobs.remote.remove(name)
        again = self._content(digest)
        for name in () if again is None else _blobs(again).values():
            self._blobs.remote.put(name, self._blobs.local.path(name))


def _admit(connection: Connection, owner: Owner, digest: str, size_bytes: int, upload: str) -> None:
    """Raise StorageQuotaExceeded where the model is not the owner's yet, and does not fit."""
    allowed = quotas.hold(connection, owner.id)
    if not models.has(connection, owner.id, digest):
        quotas.admit_bytes(connection, owner.id, allowed, size_bytes, upload=upload)


def _folder(digest: str) -> str:
    """Where the files of a model are that is added now; those from before 0003 are in folders of other names."""
    return f"sha256-{digest}"


def _blobs(content: Content) -> dict[ModelFile, str]:
    """The blob of each file, the model's own first."""
    return {file: f"models/{content.folder}/{file.name}" for file in content.files}


def _link_or_copy(source: Path, target: Path) -> None:
    """A second name of the file, or a copy on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _not_found(digest: str) -> ModelNotFound:
    return ModelNotFound(f"there is no model {digest}", remedy="`GET /v1/models` lists those that your key has.")
