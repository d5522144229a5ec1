"""API keys: made, shown once, looked up for each request, rotated, revoked."""

from __future__ import annotations

import builtins
import hmac
import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, KeyNotFound, RateLimited
from relaxc.service.jobs.database import keys, owners
from relaxc.service.jobs.database.engine import Database, url_of_settings
from relaxc.service.jobs.database.rows import SCOPES, KeyRow
from relaxc.service.jobs.objects import admins, key_secrets
from relaxc.service.jobs.objects.key_secrets import NewKey, digest_of
from relaxc.service.jobs.objects.noted import Note, by_command, by_request
from relaxc.service.jobs.objects.owners import check_name, find_owner, new_owner

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["Keys", "open_keys"]

_FRESH_S = 1.0
"""How long a revoked key may still be taken by a server that has just seen it."""

_PAUSE_S = 0.2
"""Between two looks at all keys for secrets that are most likely none."""

_ROTATIONS = 50
_DAY_S = 86400.0
"""An owner's keys rotate by themselves at most so often in a day: the database keeps each key for ever."""

_MAX_REMEMBERED = 10_000
_MAX_S = 1e10


class Keys:
    """The API keys of one database. Methods may be called from any thread."""

    def __init__(self, database: Database, note: Note = by_request) -> None:
        """`note` is told of each change, in its transaction."""
        self._database = database
        self._note = note
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[KeyRow, float]] = {}
        self._made = False, float("-inf")
        self._reading = threading.Lock()
        self._known: tuple[frozenset[str], float] = frozenset(), float("-inf")

    def create(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        owner: str | None = None,
        expires_s: float | None = None,
        weight: float | None = None,
    ) -> NewKey:
        """Return a new key with a secret of its own; it expires `expires_s` seconds from now, or never.

        It asks in the name of `owner`, an id or a name, or of a new owner of the key's name, whose share of the workers
        is `weight`. Raise InvalidOption, OwnerNotFound.
        """
        wanted, now = _checked_scopes(scopes), time.time()
        if expires_s is not None and not 0 < expires_s < _MAX_S:
            raise InvalidOption("a key expires some seconds from now", option="expires_s")
        if owner is not None and weight is not None:
            raise InvalidOption("a weight is the owner's: `relaxc owners set` changes it", option="weight")
        made = new_owner(check_name(name), 1.0 if weight is None else weight) if owner is None else None
        with self._database.begin() as connection:
            if made is not None:
                owners.insert(connection, made)
            whose = made or find_owner(connection, str(owner))
            expires = None if expires_s is None else now + expires_s
            owned = whose.id, whose.name, whose.weight
            row = KeyRow(key_secrets.new_id(), name, wanted, *owned, now, expires, disabled=whose.disabled)
            secret = key_secrets.insert(connection, row)
            self._note(connection, "keys create", row.id, {"owner": row.owner_id, "scopes": sorted(wanted)})
        with self._lock:
            self._made = True, time.monotonic()
        return NewKey(row, secret, None if made is None else made.webhook_secret)

    def rotate(self, id: str, *, grace_s: float = 0.0, by_itself: bool = False) -> NewKey:
        """Return a new key in place of one, for the same owner, with its name, scopes and length of life.

        The old one is revoked, or expires in `grace_s` seconds. A key that rotates `by_itself` gets no longer life by
        that: the new one expires when it would have. Raise KeyNotFound, InvalidOption for a revoked one, RateLimited
        where an owner's keys do so too often.
        """
        if not 0 <= grace_s < _MAX_S:
            raise InvalidOption("a rotated key ends now, or some seconds from now", option="grace_s")
        now = time.time()
        with self._database.begin() as connection:
            old = keys.find(connection, id)
            if old is None:
                raise _not_found(id)
            if by_itself:
                _check_rate(connection, old.owner_id, now)
            ended = keys.expire(connection, id, now + grace_s) if grace_s else keys.revoke(connection, now, id=id)
            if not ended:
                raise InvalidOption(
                    f"the key {id} is revoked",
                    remedy=f"Make a new one for its owner: relaxc keys create NAME --owner {old.owner_id}.",
                    option="id",
                )
            renewed = old.expires if by_itself or old.expires is None else now + (old.expires - old.created)
            row = replace(old, id=key_secrets.new_id(), created=now, expires=renewed)
            secret = key_secrets.insert(connection, row)
            self._note(connection, "keys rotate", id, {"owner": row.owner_id, "key": row.id, "grace_s": grace_s})
        self._forget_seen()
        return NewKey(row, secret)

    def list(self, owner: str | None = None) -> builtins.list[KeyRow]:
        """Return every key, or those of one owner, also revoked ones, the newest first. Raise OwnerNotFound."""
        with self._database.read() as connection:
            if owner is None:
                return keys.every(connection)
            return keys.of_owner(connection, find_owner(connection, owner).id)

    def revoke(self, id: str, *, asker: str | None = None) -> KeyRow:
        """Refuse the key from now on; other servers do within a second. May be called twice.

        Raise KeyNotFound, and AdminNeeded where that takes admin from the owner `asker`, or from the last who has it.
        """
        with self._database.begin() as connection, admins.changing(self._database, connection, asker):
            keys.revoke(connection, time.time(), id=id)
            row = keys.find(connection, id)
            if row is None:
                raise _not_found(id)
            self._note(connection, "keys revoke", id, {"owner": row.owner_id})
        self._forget_seen()
        return row

    def revoke_all(self, owner: str, *, asker: str | None = None) -> builtins.list[KeyRow]:
        """Refuse every key of an owner, an id or a name, from now on; return them.

        Raise as `find_owner`, and AdminNeeded as `revoke`.
        """
        with self._database.begin() as connection, admins.changing(self._database, connection, asker):
            whose = find_owner(connection, owner).id
            keys.revoke(connection, time.time(), owner=whose)
            rows = keys.of_owner(connection, whose)
            self._note(connection, "keys revoke", whose, {"keys": len(rows)})
        self._forget_seen()
        return rows

    def find(self, secret: str) -> KeyRow | None:
        """Return the key in force with this secret; ask the database unless it answered within the last second."""
        return self.seen(secret) or self._looked_up(digest_of(secret))

    def seen(self, secret: str) -> KeyRow | None:
        """Do as `find` without asking the database: None also for a key that it was not asked about within a second."""
        with self._lock:
            row, time_seen = self._seen.get(digest_of(secret), (None, 0.0))
        if row is None or time.monotonic() - time_seen > _FRESH_S or not row.in_force(time.time()):
            return None
        return row

    def is_known(self, secret: str, since: float) -> bool | None:
        """Return whether some key, in force or not, has this secret, as the database said after `since`.

        Return None where it was last asked before that (a time of `time.monotonic`) and too short a time ago to ask
        it again: it is asked five times a second at most, however many secrets there are.
        """
        with self._reading:
            digests, time_read = self._known
            if time_read < since and (now := time.monotonic()) - time_read > _PAUSE_S:
                with self._database.read() as connection:
                    self._known = digests, time_read = keys.digests(connection), now
        return None if time_read < since else digest_of(secret) in digests

    def any_made(self) -> bool:
        """Return whether a key was ever made: then nobody is served without one. The database is asked as by `find`."""
        made = self.any_made_seen()
        if made is None:
            with self._database.read() as connection:
                made = keys.any_made(connection)
            with self._lock:
                self._made = made, time.monotonic()
        return made

    def any_made_seen(self) -> bool | None:
        """Do as `any_made` without asking the database; None if it was not asked within a second. Yes holds always."""
        with self._lock:
            made, time_seen = self._made
        return made if made or time.monotonic() - time_seen < _FRESH_S else None

    def any_usable(self) -> bool:
        """Return whether somebody could be served."""
        with self._database.read() as connection:
            return keys.any_usable(connection, time.time())

    def _forget_seen(self) -> None:
        with self._lock:
            self._seen.clear()

    def _looked_up(self, digest: str) -> KeyRow | None:
        now = time.monotonic()
        with self._database.read() as connection:
            found = keys.of_secret(connection, digest)
        # The database compares digests as fast as it can; what it found is compared once more in constant time.
        if found is None or not hmac.compare_digest(found[1], digest) or not found[0].in_force(time.time()):
            return None
        with self._lock:
            if len(self._seen) >= _MAX_REMEMBERED:
                self._seen.clear()
            self._seen[digest] = found[0], now
        return found[0]


@contextmanager
def open_keys() -> Iterator[Keys]:
    """Return the keys of the database that the settings name, for a command. Raise InvalidOption, ServiceError."""
    with closing(Database(url_of_settings(settings().cache_dir))) as database:
        yield Keys(database, by_command)


def _checked_scopes(scopes: Iterable[str]) -> frozenset[str]:
    wanted = frozenset(scopes)
    if not wanted or not wanted <= set(SCOPES):
        unknown = ", ".join(sorted(wanted - set(SCOPES))) or "none"
        raise InvalidOption(f"scopes are some of {', '.join(SCOPES)}, not {unknown}", option="scopes")
    return wanted


def _check_rate(connection: Connection, owner: str, now: float) -> None:
    """Raise RateLimited where the owner has got as many keys in a day as it may without an admin."""
    made = sorted(row.created for row in keys.of_owner(connection, owner) if row.created > now - _DAY_S)
    if len(made) >= _ROTATIONS:
        wait_s = max(1, math.ceil(made[-_ROTATIONS] + _DAY_S - now))
        raise RateLimited(f"{len(made)} keys were made for this owner in a day", retry_after_s=wait_s)


def _not_found(id: str) -> KeyNotFound:
    return KeyNotFound(f"there is no key {id[:80]}")
