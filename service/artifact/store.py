"""The content-addressed store: artifacts by their SHA-256, keys that lead to them, many processes at once.

ROOT/artifacts/ab/abcd…/     the files of one artifact and entry.json, whose mtime is the last use
ROOT/keys/12/1234….json      artifact, named entries, build record
ROOT/locks/1234….lock        held by the process that compiles that key; abcd….placing.lock, by who puts that artifact
ROOT/staging/                what is being written; renamed into place, or swept later
ROOT/size                    how many bytes all artifacts have at most, and all that ever came
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from relaxc.service.artifact.atomic import (
    hold_folder,
    remove_folder,
    staging_folder,
    sweep_staging,
    sync,
    vacate,
    write_file,
)
from relaxc.service.artifact.entry import (
    ENTRY_FILE,
    Entry,
    Explanation,
    Opened,
    StoredFile,
    StoredKey,
    is_digest,
    remember,
    sha256_of,
)
from relaxc.service.artifact.identity import identity_of
from relaxc.service.artifact.key import Key
from relaxc.service.artifact.locks import held, sweep_locks
from relaxc.service.artifact.tally import Tally
from relaxc.service.errors import ArtifactCorrupt, ArtifactNotFound, StoreUnwritable

__all__ = ["Store"]

_GRACE_S = 30.0
"""Not removed for this long after a use, so that what `lookup` or `put` named can still be opened."""

_STALE_S = 60.0
"""Age at which an unheld staging folder is somebody's who died, and time between two searches for such by puts."""

_SLACK = 20
"""A put that finds the store too large leaves a twentieth of it free, so that the next ones need not look."""


class Store:
    """The artifacts under `root`, kept below `max_bytes` by removing the least recently used.

    Safe for any number of processes on one machine. What is damaged on disk is removed and counts as a miss.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self.spared: Callable[[], Collection[str] | None] = tuple
        """What says which artifacts `gc` leaves alone for now; None where that cannot be said, and all stay."""
        self.removed: Callable[[int], object] = lambda count: None
        """Is told how many were removed."""
        self._staging = root / "staging"
        self._tally = Tally(root / "size", root / "locks" / "size.lock")
        self._swept = -math.inf

    def _folder(self, digest: str) -> Path:
        return self.root / "artifacts" / digest[:2] / digest

    def _key_path(self, digest: str) -> Path:
        return self.root / "keys" / digest[:2] / f"{digest}.json"

    def _placing(self, digest: str) -> Path:
        return self.root / "locks" / f"{digest}.placing.lock"

    # Finding

    def lookup(self, key: Key) -> Entry | None:
        """Return the artifact of this key, or None. A hit counts as a use, and what it hit is whole."""
        path = self._key_path(key.digest)
        try:
            stored = StoredKey.read(path)
        except ArtifactCorrupt:
            path.unlink(missing_ok=True)
            return None
        try:
            with self.open(stored.artifact) as opened:
                entry = opened.entry
        except (ArtifactNotFound, ArtifactCorrupt):
            path.unlink(missing_ok=True)
            return None
        return replace(entry, build=stored.build, keys=(stored,))

    def open(self, digest: str) -> Opened:
        """Return the artifact with this digest, safe from removal until it is closed; a process hashes it once.

        Raise ArtifactNotFound, also for what is no digest, and ArtifactCorrupt, after which it is removed.
        """
        opened = self._open(digest)
        try:
            opened.entry.check()
        except ArtifactCorrupt:
            opened.close()
            self._remove_damaged(digest)
            raise
        return opened

    def _open(self, digest: str) -> Opened:
        """Do as `open`, but for the contents, which nothing is asked of."""
        handle = hold_folder(self._folder(digest), exclusive=False) if is_digest(digest) else None
        if handle is None:
            raise ArtifactNotFound(f"there is no artifact {digest}", digest=digest)
        try:
            return Opened(self._touch(digest), handle)
        except ArtifactCorrupt:
            os.close(handle)
            self._remove_damaged(digest)
            raise

    def use(self, digest: str) -> bool:
        """Count a use of the artifact, and say whether it is there; of its files nothing is looked at."""
        try:
            os.utime(self._folder(digest) / ENTRY_FILE)
        except FileNotFoundError:
            return False
        except OSError as error:  # a store that is not ours to write can be read; only its order of use is not kept
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        return True

    def size_of(self, digest: str) -> int:
        """Return the bytes of its files, 0 where it is not here; that is no use of it."""
        try:
            return Entry.read(self._folder(digest)).size_bytes
        except (ArtifactCorrupt, FileNotFoundError):
            return 0

    def _touch(self, digest: str) -> Entry:
        self.use(digest)
        return Entry.read(self._folder(digest))

    def verify(self, digest: str) -> Entry:
        """Return the artifact with this digest, every byte hashed anew; raises and removes it when one is wrong."""
        try:
            return self._checked(digest)
        except ArtifactCorrupt:
            with held(self._placing(digest)):  # who was putting an equal one has done so, and that one stays
                return self._checked(digest, or_remove=True)

    def scrub(self) -> Iterator[tuple[Entry, ArtifactCorrupt | None]]:
        """Hash every artifact anew; yield each with what is wrong of it, after which it is removed."""
        for entry in self._entries():
            try:
                yield self.verify(entry.digest), None
            except ArtifactCorrupt as error:
                yield entry, error
            except ArtifactNotFound:  # removed meanwhile
                continue

    def _checked(self, digest: str, *, or_remove: bool = False) -> Entry:
        try:
            with self._open(digest) as opened:
                return opened.entry.check(sha256_of)
        except ArtifactCorrupt:
            if or_remove:
                remove_folder(self._folder(digest), self._staging)
            raise

    def ls(self) -> list[Entry]:
        """Return every artifact with the keys that lead to it, the most recently used first."""
        keys = defaultdict(list)
        for stored in self._keys():
            keys[stored.artifact].append(stored)
        entries = [replace(entry, keys=tuple(keys[entry.digest])) for entry in self._entries()]
        return sorted(entries, key=lambda entry: -entry.used_at)

    def _entries(self) -> Iterator[Entry]:
        for folder in sorted(self.root.glob("artifacts/*/*")):
            try:
                yield Entry.read(folder)
            except (ArtifactCorrupt, FileNotFoundError):
                continue  # just removed by another process, or damaged: its next use removes it

    def _keys(self) -> Iterator[StoredKey]:
        for path in sorted(self.root.glob("keys/*/*.json")):
            try:
                yield StoredKey.read(path)
            except ArtifactCorrupt:
                path.unlink(missing_ok=True)

    def explain(self, key: Key) -> Explanation:
        """Return whether the key would hit, and if not, the stored key nearest to it: of the same model if there is
        one.
        """
        keys = list(self._keys())
        for stored in keys:
            if stored.key == key and self._folder(stored.artifact).is_dir():
                return Explanation(True, stored, {})
        others = [stored for stored in keys if stored.key != key]
        if not others:
            return Explanation(False, None, {})
        differences = [stored.key.differences(key) for stored in others]
        best = min(range(len(others)), key=lambda i: ("model.digest" in differences[i], len(differences[i])))
        return Explanation(False, others[best], differences[best])

    # Putting

    def put(self, key: Key, files: Sequence[Path], build_record: Mapping[str, Any]) -> Entry:
        """Keep `files`, the shared library first, as the artifact of `key`; they are moved into the store.

        Afterwards the store is back under its limit, this artifact kept. Raise StoreUnwritable; then nothing
        is kept, and `files` may be gone.
        """
        if not files or not all(file.is_file() for file in files):
            raise ArtifactNotFound(f"there are no such files: {', '.join(map(str, files))}")
        try:
            digest = self._admit(files)
            stored = StoredKey(key, digest, dict(build_record))
            write_file(self._key_path(key.digest), stored.to_json().encode(), self._staging)
            self._make_room(keep=digest)
            with self._open(digest) as opened:
                for file in opened.entry.files:  # hashed right now
                    remember(identity_of(opened.entry.folder / file.name), file.sha256)
                return replace(opened.entry, build=stored.build, keys=(stored,))
        except OSError as error:
            raise StoreUnwritable(f"the artifact store cannot be written: {error.strerror or error}") from error

    def _admit(self, files: Sequence[Path]) -> str:
        with staging_folder(self._staging) as folder:
            stored = []
            for file in files:
                path = Path(shutil.move(file, folder / file.name))
                with ThreadPoolExecutor(1) as disk:
                    written = disk.submit(sync, path)  # beside the hash, which reads what is in memory
                    stored.append(StoredFile(file.name, path.stat().st_size, sha256_of(path)))
                written.result()
            digest = stored[0].sha256
            entry = Entry(digest, folder, tuple(stored), time.time())
            write_file(folder / ENTRY_FILE, entry.to_json().encode(), self._staging)
            self._place(folder, digest)
        return digest

    def _place(self, folder: Path, digest: str) -> None:
        target = self._folder(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        with held(self._placing(digest)):
            for delay_s in (0.001, 0.01, 0.1, None):  # another process may be removing it
                try:
                    self._checked(digest)  # equal contents are here: they stay, unless they are damaged
                    break
                except ArtifactCorrupt:
                    vacate(target, self._staging)  # from under those who read it, too
                except ArtifactNotFound:
                    pass
                try:
                    folder.rename(target)
                    break
                except OSError:
                    if delay_s is None:
                        raise
                    time.sleep(delay_s)
        sync(target.parent)

    @contextmanager
    def lock(self, key: Key, *, timeout_s: float = -1) -> Iterator[None]:
        """Hold the key's lock: one process or thread has it at a time for each key, so that equal requests compile
        once.

        Look the key up again once you hold it. Raise Busy after `timeout_s` seconds; a negative one waits for ever.
        """
        with held(self.root / "locks" / f"{key.digest}.lock", timeout_s):
            yield

    # Removing

    def _make_room(self, *, keep: str) -> None:
        """Remove artifacts where this one may have brought the store over its limit; all are read only then."""
        size = self._tally.add(self.size_of(keep))
        if size is None or size > self.max_bytes:
            self.gc(self.max_bytes - self.max_bytes // _SLACK, keep={keep})
        elif time.monotonic() - self._swept > _STALE_S:
            self.sweep()

    def gc(self, max_bytes: int | None = None, *, keep: Collection[str] = (), grace_s: float = _GRACE_S) -> list[Entry]:
        """Remove the least recently used artifacts until the rest has at most `max_bytes` (the store's own limit).

        What is open, `spared`, in `keep`, or was used in the last `grace_s` seconds stays, so the rest may be larger.
        Returns what was removed; also sweeps what dead processes left.
        """
        limit = self.max_bytes if max_bytes is None else max_bytes
        now = time.time()
        self.sweep()
        with self._tally.recount() as sizes:
            entries = sorted(self._entries(), key=lambda entry: entry.used_at)
            total, removed = sum(entry.size_bytes for entry in entries), []
            spared = self.spared() if total > limit else ()
            for entry in entries if spared is not None else ():
                if total <= limit:
                    break
                if (
                    entry.digest not in keep
                    and entry.digest not in (spared or ())
                    and entry.used_at <= now - grace_s
                    and remove_folder(entry.folder, self._staging)
                ):
                    removed.append(entry)
                    total -= entry.size_bytes
            sizes.append(total)
        if removed:
            self._forget({entry.digest for entry in removed})
            self.removed(len(removed))
        return removed

    def sweep(self) -> None:
        """Remove what dead processes left half written, and locks that nobody needs; `gc` does it too."""
        self._swept = time.monotonic()
        sweep_staging(self._staging, time.time() - _STALE_S)
        sweep_locks(self.root / "locks")

    def _forget(self, digests: Collection[str]) -> None:
        for stored in self._keys():
            if stored.artifact in digests:
                self._key_path(stored.key.digest).unlink(missing_ok=True)

    def _remove_damaged(self, digest: str) -> None:
        def damaged() -> bool:
            try:
                Entry.read(self._folder(digest)).check()
            except ArtifactCorrupt:
                return True
            return False

        remove_folder(self._folder(digest), self._staging, only_if=damaged)
