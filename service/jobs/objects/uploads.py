"""Uploads in parts: bytes by announced SHA-256, gone on with after any interruption, dropped when nobody does.

ROOT/uploads/k_local/<sha256>-<total>.part: the file's name says what was announced, its size is the offset, its age the
time of the last byte. So nothing else has to be kept in step with it when the server is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from relaxc.service.artifact.entry import is_digest, sha256_of
from relaxc.service.config import settings
from relaxc.service.errors import (
    DigestMismatch,
    InvalidOption,
    ModelError,
    ModelTooLarge,
    RequestError,
    UploadConflict,
)
from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.rows import ModelRow, Owner
from relaxc.service.jobs.objects.allowance import Allowance
from relaxc.service.jobs.objects.intake import Sent
from relaxc.service.jobs.objects.models import Models
from relaxc.service.jobs.objects.part import Part, UploadState, unwritable
from relaxc.service.process.workspace import Workspace

__all__ = ["Uploads"]

_NAMED = "an upload is named by the SHA-256 of the file, as 64 lower-case hex digits"


class Uploads:
    """The uploads of every owner, in one folder of this host."""

    def __init__(self, root: Path, models: Models, allowance: Allowance, workspace: Workspace) -> None:
        self._root = root
        self._allowance = allowance
        self._models = models
        self._workspace = workspace

    def state(self, owner: Owner, sha256: str) -> UploadState | None:
        """Return how much has come; None when nothing has."""
        path = self._found(owner, sha256)
        try:
            return None if path is None else UploadState(sha256, path.stat().st_size, _total_of(path))
        except FileNotFoundError:
            return None

    def open(self, owner: Owner, sha256: str, *, offset: int, total: int) -> Part:
        """Return the upload at `offset`, begun where it is 0 and nothing is there.

        Raise UploadConflict, whose field `offset` says where to go on, when `offset` or `total` is not what is there
        or somebody else sends it now; ModelTooLarge; InvalidOption for what is no digest; StorageQuotaExceeded, before
        a byte has come, where the whole does not fit into what the owner may keep.
        """
        limit = settings().max_model_bytes
        if not is_digest(sha256):
            raise InvalidOption(_NAMED)
        if total > limit:
            raise ModelTooLarge(f"the upload is over RELAXC_MAX_MODEL_BYTES, {limit} bytes", limit_bytes=limit)
        if not 0 <= offset <= total:
            raise InvalidOption(f"byte {offset} is not within the {total} bytes of the upload", option="Content-Range")
        with _alone(self._root / owner.id):
            return self._opened(owner, sha256, offset, total)

    def _opened(self, owner: Owner, sha256: str, offset: int, total: int) -> Part:
        """Of two who begin one upload at once, the second finds what the first has announced."""
        there = self.state(owner, sha256)
        if there is not None and there.total != total:
            what = f"the upload was announced with {there.total} bytes, not {total}"
            raise UploadConflict(what, offset=there.offset, total=there.total)
        if there is None and offset > 0:
            raise UploadConflict("nothing of this upload is here", offset=0, total=total)
        self._allowance.reserve(owner, sha256, total)
        part = Part(self._root / owner.id / f"{sha256}-{total}.part", sha256, total)
        if (found := part.state.offset) != offset:
            part.close()
            raise UploadConflict(f"the upload stands at byte {found}, not {offset}", offset=found, total=total)
        return part

    def finish(self, owner: Owner, sha256: str, *, name: str = "model") -> tuple[ModelRow, bool]:
        """Make a complete upload a model, as `Models.add`. Raise DigestMismatch, after which nothing of it is left,
        and UploadConflict while bytes are missing."""
        path = self._found(owner, sha256)
        if path is None:
            raise UploadConflict("nothing of this upload is here", offset=0)
        with Part(path, sha256, _total_of(path)) as part:
            state = part.state
            if not state.complete:
                raise UploadConflict(
                    f"{state.total - state.offset} bytes are missing", offset=state.offset, total=state.total
                )
            try:
                row = self._to_model(owner, path, sha256, name)
            except (ModelError, RequestError):
                path.unlink(missing_ok=True)  # sending it again would end the same way
                self._allowance.release(owner.id, sha256)
                raise
            path.unlink(missing_ok=True)
            return row

    def _to_model(self, owner: Owner, path: Path, sha256: str, name: str) -> tuple[ModelRow, bool]:
        if (found := sha256_of(path)) != sha256:
            raise DigestMismatch(f"the upload has SHA-256 {found}, not the announced {sha256}", found=found)
        folder = self._workspace.folder("upload")
        try:
            model = folder / "model"
            model.hardlink_to(path)
            return self._models.add(owner, Sent(model, {"model": found}), name=name, upload=sha256)
        except OSError as error:
            raise unwritable(error) from error
        finally:
            self._workspace.remove(folder)

    def remove(self, owner: Owner, sha256: str) -> None:
        """Drop what has come, and give its room back; nothing where nothing has.

        Raise UploadConflict while somebody sends it, InvalidOption for what is no digest.
        """
        if not is_digest(sha256):
            raise InvalidOption(_NAMED)
        with _alone(self._root / owner.id):
            path = self._found(owner, sha256)
            if path is not None:
                with Part(path, sha256, _total_of(path)):
                    path.unlink()
            self._allowance.release(owner.id, sha256)

    def sweep(self, older_than_s: float) -> int:
        """Drop uploads whose last byte came so many seconds ago and that nobody sends; return how many."""
        gone, before = 0, clock.file_time() - older_than_s
        touched: dict[tuple[str, str], float] = {}
        for path in self._root.glob("*/*.part"):
            owner, sha256 = path.parent.name, path.stem.partition("-")[0]
            with contextlib.suppress(FileNotFoundError, UploadConflict):
                touched[owner, sha256] = path.stat().st_mtime
                if touched[owner, sha256] < before:
                    with Part(path, path.stem, _total_of(path)):
                        path.unlink()
                    gone += 1
                    with contextlib.suppress(OSError):  # others of his are in it
                        path.parent.rmdir()
        self._allowance.sweep(before, touched)
        return gone

    def _found(self, owner: Owner, sha256: str) -> Path | None:
        if not is_digest(sha256):
            return None
        return next((self._root / owner.id).glob(f"{sha256}-*.part"), None)


def _total_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder, made where there is none; others wait."""
    try:
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # a sweep has removed it, empty, again
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                break
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        raise unwritable(error) from error
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)
