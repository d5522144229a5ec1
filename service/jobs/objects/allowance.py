"""What owners may have and have, and room for what is on its way to them."""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Any

from relaxc.service.jobs.database import instances, models, owners, quota_use, quotas, uploads
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.quotas import QUOTAS, Quotas, Use
from relaxc.service.jobs.database.rows import Owner
from relaxc.service.jobs.database.tuning_times import WINDOW_S
from relaxc.service.jobs.database.uploads import UploadRow

__all__ = ["Allowance", "Watched"]

_DAY_S = 86400.0
_WATCH_S = 60.0


@dataclass(frozen=True, slots=True)
class Watched:
    """Uploads on their way with the bytes that they have room for, and how many owners have which share of a quota."""

    asked: float
    uploads: int
    upload_bytes: int
    owners_at: Mapping[tuple[str, float], int]


class Allowance:
    """The quotas of one database's owners. Methods may be called from any thread, on any number of servers at once."""

    def __init__(self, database: Database, server: str = "") -> None:
        """`server` is the id of this one among the servers of the database."""
        self._database = database
        self._server = server
        self._watched: Watched | None = None
        self._watching = Lock()

    def describe(self, owner: str) -> dict[str, Any]:
        """Return the owner as JSON, with its limits and what it uses of them; a limit that is none is null."""
        with self._database.read() as connection:
            row = owners.find(connection, owner)
            allowed, used = quotas.quotas(connection, owner), quotas.use(connection, owner)
        known = {"id": owner, "name": owner} if row is None else row.to_dict()
        return {**known, "quotas": _as_json(allowed, used)}

    def reserve(self, owner: Owner, name: str, size_bytes: int) -> None:
        """Keep room for an upload, again where it has some. Raise StorageQuotaExceeded where it does not fit.

        A model that the owner has already takes none, where `name` is its digest.
        """
        with self._database.begin() as connection:
            allowed = quotas.hold(connection, owner.id)
            if models.has(connection, owner.id, name):
                size_bytes = 0
            if uploads.find(connection, owner.id, name) != size_bytes:
                quotas.admit_bytes(connection, owner.id, allowed, size_bytes, upload=name)
            uploads.put(connection, owner.id, name, size_bytes)

    def release(self, owner: str, name: str) -> None:
        """Forget an upload that does not come."""
        with self._database.begin() as connection:
            uploads.remove(connection, owner, name)

    def uploads(self, owner: str, *, limit: int = 1000) -> list[UploadRow]:
        """Return the uploads that the owner has begun and may go on with, the newest first."""
        with self._database.read() as connection:
            return uploads.of_owner(connection, owner, limit)

    def watched(self) -> Watched:
        """Return numbers of all owners together; the database is asked once a minute. Raise ServiceError."""
        with self._watching:
            if self._watched is None or monotonic() - self._watched.asked > _WATCH_S:
                with self._database.read() as connection:
                    number, size_bytes = uploads.number_and_bytes(connection)
                    self._watched = Watched(monotonic(), number, size_bytes, quota_use.owners_at(connection))
            return self._watched

    @contextlib.contextmanager
    def room(self, owner: Owner, size_bytes: int | None, most_bytes: int) -> Iterator[tuple[str, int]]:
        """Keep room for a request's body while the block runs; give its name and how many bytes it may have.

        One that does not say how large it is gets what is left, at most `most_bytes`. Raise StorageQuotaExceeded.
        """
        name = f"{uploads.REQUEST}{self._server}-{uuid.uuid4().hex[:16]}"
        room_bytes = self._left(owner, most_bytes) if size_bytes is None else size_bytes
        self.reserve(owner, name, room_bytes)
        try:
            yield name, most_bytes if size_bytes is not None else room_bytes
        finally:
            self.release(owner.id, name)

    def _left(self, owner: Owner, most_bytes: int) -> int:
        with self._database.read() as connection:
            allowed, used = quotas.quotas(connection, owner.id), quotas.use(connection, owner.id)
        return int(max(1, min(most_bytes, allowed.bytes - used.bytes)))

    def sweep(self, before: float, touched: Mapping[tuple[str, str], float]) -> None:
        """Forget uploads whose last byte came before this time, and those in requests to servers that are gone.

        `touched` has the time of the last byte of each on this host, by owner and name.
        """
        with self._database.begin() as connection:
            for (owner, name), time in touched.items():
                uploads.touch(connection, owner, name, time)
            uploads.remove_old(connection, before)
            servers = instances.ids(connection)
            for owner, name in uploads.of_requests(connection):
                if name.removeprefix(uploads.REQUEST).partition("-")[0] not in servers:
                    uploads.remove(connection, owner, name)


def _as_json(allowed: Quotas, used: Use) -> dict[str, Any]:
    described: dict[str, dict[str, Any]] = {}
    for name in QUOTAS:
        limit, now = getattr(allowed, name), getattr(used, name)
        described[name] = {"limit": _number(limit), "used": _number(round(now, 3))}
    return described | {"tuning_hours": {**described["tuning_hours"], "days": _number(WINDOW_S / _DAY_S)}}


def _number(value: float) -> float | None:
    """The number as people write it; null for no limit."""
    return None if value == math.inf else int(value) if value == int(value) else value
