"""A local folder, with a bucket behind it where one is set: what the folder lacks is fetched, and checked."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from relaxc.service.artifact.entry import known_sha256, sha256_of
from relaxc.service.errors import StoreUnwritable
from relaxc.service.jobs.blobs.local import LocalBlobs
from relaxc.service.jobs.blobs.s3 import S3Blobs

__all__ = ["Blobs", "open_blobs"]

_LOG = logging.getLogger("relaxc.blobs")


class Blobs:
    """Named bytes. With a bucket, what `put` returned is in it, and another server may ask for it."""

    def __init__(self, local: LocalBlobs, remote: S3Blobs | None = None) -> None:
        self.local = local
        self.remote = remote

    def put(self, name: str, file: Path) -> Path:
        """Move `file` into the folder, after it was mirrored. Raise StoreUnwritable."""
        if self.remote is not None:
            self.remote.put(name, file)
        return self.local.put(name, file)

    def put_bytes(self, name: str, data: bytes) -> Path:
        """Keep these bytes under `name`. Raise StoreUnwritable."""
        staged = self.local.staged()
        try:
            staged.write_bytes(data)
            return self.put(name, staged)
        except OSError as error:
            raise StoreUnwritable(f"models and logs cannot be kept: {error.strerror or error}") from error
        finally:
            staged.unlink(missing_ok=True)

    def find(self, name: str, sha256: str | None = None) -> Path | None:
        """Return the blob's file, or None.

        What has another digest than `sha256`, here or in the bucket, counts as lost; here it is put aside.
        """
        path = self.local.path(name)
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            if path.is_file() and (sha256 is None or self._is_right(path, name, sha256, known_sha256)):
                return path
        return self._fetched(name, sha256) if self.remote is not None else None

    def scrub(self, name: str, sha256: str) -> bool:
        """Return whether what is here of it has this digest, hashed anew; else it is put aside."""
        path = self.local.path(name)
        with contextlib.suppress(FileNotFoundError):
            return not path.is_file() or self._is_right(path, name, sha256, sha256_of)
        return True

    def _is_right(self, path: Path, name: str, sha256: str, hashed: Callable[[Path], str]) -> bool:
        if hashed(path) == sha256:
            return True
        _LOG.error("%s is damaged: its SHA-256 is not %s; it is put aside", name, sha256)
        self.local.quarantine(name)
        return False

    def _fetched(self, name: str, sha256: str | None) -> Path | None:
        assert self.remote is not None
        staged = self.local.staged()
        try:
            if not self.remote.fetch(name, staged):
                return None
            if sha256 is not None and sha256_of(staged) != sha256:
                _LOG.error("%s in the bucket is damaged: its SHA-256 is not %s", name, sha256)
                return None
            return self.local.put(name, staged)
        finally:
            staged.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove it everywhere; nothing where it is not there. Raise StoreUnwritable."""
        self.local.remove(name)
        if self.remote is not None:
            self.remote.remove(name)

    def close(self) -> None:
        """Let go of the bucket."""
        if self.remote is not None:
            self.remote.close()


def open_blobs(url: str, root: Path, endpoint_url: str | None = None) -> Blobs:
    """Return the blobs of RELAXC_BLOBS_URL: empty is the folder `root`, a path another, `s3://…` a bucket behind it."""
    if url.startswith("s3://"):
        return Blobs(LocalBlobs(root), S3Blobs(url, endpoint_url))
    return Blobs(LocalBlobs(Path(url.removeprefix("file://")) if url else root))
