"""Finished artifacts, for those who had them made, and their mirror in the bucket."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from relaxc.service.artifact.entry import Entry, Opened, is_digest, sha256_of
from relaxc.service.artifact.key import Key
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.artifact.store import Store
from relaxc.service.errors import ArtifactNotFound, ServiceError, StoreUnwritable
from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.database import artifacts
from relaxc.service.jobs.database.artifacts import ArtifactRow
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import Owner
from relaxc.service.jobs.objects.recent import Recent
from relaxc.service.process.workspace import Workspace
from relaxc.service.request import TargetSpec

__all__ = ["Artifacts"]

_LOG = logging.getLogger("relaxc.artifacts")
_MANIFESTS_BYTES = 32 << 20
_PAGE = 1000
_TOUCH_S = 3600.0
"""How long a use that was noted stands for others: retention counts in days."""

_MAX_TOUCHED = 10_000


class Artifacts:
    """The artifact store, seen by owner.

    With a bucket, `artifacts/DIGEST/…` has the files of each artifact, `artifacts/DIGEST/about.json` what the store
    needs to take them in again, and `keys/KEY/artifact` leads from a key to its artifact.
    """

    def __init__(self, database: Database, blobs: Blobs, store: Store, workspace: Workspace) -> None:
        self._database = database
        self._blobs = blobs
        self._store = store
        self._workspace = workspace
        self._manifests = Recent(_MANIFESTS_BYTES)
        self._touched: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def open(self, owner: Owner, digest: str) -> Opened:
        """Safe from removal until it is closed; fetched back where only the mirror has it.

        Raise ArtifactNotFound, also for what this owner has not had made, and ArtifactCorrupt.
        """
        if not self.has(owner, digest):
            raise ArtifactNotFound(f"there is no artifact {digest}", digest=digest)
        self._touch(owner, digest)
        return self.open_accepted(digest)

    def open_accepted(self, digest: str) -> Opened:
        """Do as `open` for a job that was accepted: whose artifact it is was asked then."""
        try:
            return self._store.open(digest)
        except ArtifactNotFound:
            if self._restore(digest) is None:
                raise
            return self._store.open(digest)

    def manifest(self, owner: Owner, digest: str) -> bytes:
        """Return the JSON of its manifest, from memory where it was asked for lately. Raise what `open` raises."""
        known = self._manifests.get(digest)
        if known is not None and self.has(owner, digest) and self._store.use(digest):
            self._touch(owner, digest)
            return known
        with self.open(owner, digest) as opened:
            text = Manifest.read(opened.path).to_json().encode()
        self._manifests.put(digest, text)
        return text

    def target(self, digest: str) -> TargetSpec:
        """Return what an artifact that is somebody's was compiled for. Raise ArtifactNotFound, ArtifactCorrupt."""
        known = self._manifests.get(digest)
        if known is not None:
            return Manifest.from_json(known).target
        with self.open_accepted(digest) as opened:
            found = Manifest.read(opened.path)
        self._manifests.put(digest, found.to_json().encode())
        return found.target

    def has(self, owner: Owner, digest: str) -> bool:
        """Return whether this owner has had it made."""
        if not is_digest(digest):
            return False
        with self._database.read() as connection:
            return artifacts.has(connection, None if owner.admin else owner.id, digest)

    def list(self, owner: Owner, *, limit: int = 1000) -> list[ArtifactRow]:
        """Return the owner's artifacts, the newest first; everybody's for an admin."""
        with self._database.read() as connection:
            return artifacts.of_owner(connection, None if owner.admin else owner.id, limit)

    def remove(self, owner: Owner, digest: str) -> None:
        """Take it from the owner, or from everybody for an admin; jobs that were accepted still run.

        Raise ArtifactNotFound.
        """
        with self._database.begin() as connection:
            if not artifacts.disown(connection, None if owner.admin else owner.id, digest):
                raise ArtifactNotFound(f"there is no artifact {digest}", digest=digest)

    def measure(self) -> None:
        """Have those count nothing that are kept nowhere any more, and those that came back what they take."""
        after = ""
        while True:
            with self._database.read() as connection:
                noted = artifacts.sizes(connection, after=after, most=_PAGE)
            for after, (least, most) in noted.items():
                self._measure(after, least, most)
            if len(noted) < _PAGE:
                return

    def _measure(self, digest: str, least: int, most: int) -> None:
        in_bucket = most > 0 and self._blobs.remote is not None
        found = most if in_bucket else self._store.size_of(digest)
        if not least == most == found:
            with self._database.begin() as connection:
                artifacts.measure(connection, digest, found)

    def _touch(self, owner: Owner, digest: str) -> None:
        """Once in a while: who fetches it has used it. A database that is too busy for that is no reason to fail."""
        now = time.monotonic()
        with self._lock:
            if now - self._touched.get((owner.id, digest), float("-inf")) < _TOUCH_S:
                return
            if len(self._touched) >= _MAX_TOUCHED:
                self._touched.clear()
            self._touched[owner.id, digest] = now
        try:
            with self._database.begin() as connection:
                artifacts.touch(connection, None if owner.admin else owner.id, digest, _TOUCH_S)
        except ServiceError as error:
            _LOG.warning("the use of %s is not noted: %s", digest, error)

    def lookup(self, key: Key) -> Entry | None:
        """Return the artifact of this key, here or in the mirror; a mirror that does not answer has none."""
        entry = self._store.lookup(key)
        if entry is not None or self._blobs.remote is None:
            return entry
        try:
            pointer = self._blobs.remote.read(f"keys/{key.digest}/artifact")
            digest = "" if pointer is None else pointer.decode(errors="replace").strip()
            return self._restore(digest) if is_digest(digest) else None
        except StoreUnwritable as error:
            _LOG.warning("looking for %s in the bucket: %s", key.digest, error)
            return None

    def lookup_own(self, owner: Owner, key: Key) -> Entry | None:
        """Return the artifact of this key, where this owner himself, admin or not, has had just that one made."""
        entry = self.lookup(key)
        if entry is None:
            return None
        with self._database.read() as connection:
            return entry if artifacts.has(connection, owner.id, entry.digest) else None

    def mirror(self, entry: Entry) -> None:
        """Put a finished artifact into the bucket, if there is one. Raise StoreUnwritable."""
        remote = self._blobs.remote
        if remote is None or not entry.keys:
            return
        stored = entry.keys[0]
        files = [[file.name, file.size_bytes, file.sha256] for file in entry.files]
        about = {"files": files, "key": dict(stored.key.entries), "build": dict(entry.build)}
        for file in entry.paths:
            remote.put(f"artifacts/{entry.digest}/{file.name}", file)
        self._put_remote(f"artifacts/{entry.digest}/about.json", json.dumps(about))
        self._put_remote(f"keys/{stored.key.digest}/artifact", entry.digest)

    def _put_remote(self, name: str, text: str) -> None:
        assert self._blobs.remote is not None
        folder = self._workspace.folder("mirror")
        try:
            path = folder / "text"
            path.write_text(text)
            self._blobs.remote.put(name, path)
        finally:
            self._workspace.remove(folder)

    def _restore(self, digest: str) -> Entry | None:
        """Takes an artifact in from the bucket; None where that has none, or a damaged one."""
        remote = self._blobs.remote
        if remote is None:
            return None
        folder = self._workspace.folder("restore")
        try:
            about_path = folder / "about.json"
            if not remote.fetch(f"artifacts/{digest}/about.json", about_path):
                return None
            about: dict[str, Any] = json.loads(about_path.read_bytes())
            paths = []
            for name, _, sha256 in about["files"]:
                path = folder / Path(name).name
                if not remote.fetch(f"artifacts/{digest}/{name}", path) or sha256_of(path) != sha256:
                    _LOG.error("artifact %s in the bucket is damaged: %s", digest, name)
                    return None
                paths.append(path)
            if not paths or sha256_of(paths[0]) != digest:
                return None
            return self._store.put(Key.of(about["key"]), paths, about["build"])
        except (ValueError, KeyError, TypeError) as error:
            _LOG.error("artifact %s in the bucket is damaged: %s", digest, error)
            return None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
