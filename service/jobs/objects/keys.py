"""API keys: made, shown once, looked up for each request, revoked."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import string
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from service.config import settings
from service.errors import InvalidOption, KeyNotFound
from service.jobs.database import keys
from service.jobs.database.engine import Database, url_of_settings
from service.jobs.database.rows import SCOPES, KeyRow

__all__ = ["Keys", "NewKey", "open_keys"]

SECRET_PREFIX = "rk_"
_LETTERS = string.ascii_letters + string.digits
_SECRET_LETTERS = 43
"""62⁴³ > 2²⁵⁶. A secret of that many random bits is not to be guessed, also not from its hash: a slow hash (argon2),
which makes up for weak passwords, would only make every request slow."""

_ID_LETTERS = 12
_FRESH_S = 1.0
"""How long a revoked key may still be taken by a server that has just seen it."""

_PAUSE_S = 0.2
"""Between two looks at all keys for secrets that are most likely none."""

_MAX_REMEMBERED = 10_000
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made, with what is never shown again."""

    row: KeyRow
    secret: str


class Keys:
    """The API keys of one database. Methods may be called from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[KeyRow, float]] = {}
        self._made = False, float("-inf")
        self._reading = threading.Lock()
        self._known: tuple[frozenset[str], float] = frozenset(), float("-inf")

    def create(
        self, name: str, scopes: Iterable[str], *, expires_s: float | None = None, weight: float = 1.0
    ) -> NewKey:
        """Return a new key with a secret of its own; it expires `expires_s` seconds from now, or never.

        `weight` is its share of the workers when several keys want them. Raise InvalidOption.
        """
        wanted = frozenset(scopes)
        if not wanted or not wanted <= set(SCOPES):
            unknown = ", ".join(sorted(wanted - set(SCOPES))) or "none"
            raise InvalidOption(f"scopes are some of {', '.join(SCOPES)}, not {unknown}", option="scopes")
        if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
            raise InvalidOption(f"a key's name has 1 to {_MAX_NAME} printable characters", option="name")
        if expires_s is not None and not 0 < expires_s < 1e10:
            raise InvalidOption("a key expires some seconds from now", option="expires_s")
        if not 0 < weight <= 1000:
            raise InvalidOption("a weight is over 0 and at most 1000", option="weight")
        now, secret = time.time(), SECRET_PREFIX + _random(_SECRET_LETTERS)
        row = KeyRow(
            id="k_" + _random(_ID_LETTERS),
            name=name,
            scopes=wanted,
            weight=weight,
            webhook_secret="whsec_" + _random(_SECRET_LETTERS),
            created=now,
            expires=None if expires_s is None else now + expires_s,
        )
        with self._database.begin() as connection:
            keys.insert(connection, row, secret_sha256=_digest(secret))
        with self._lock:
            self._made = True, time.monotonic()
        return NewKey(row, secret)

    def list(self) -> list[KeyRow]:
        """Return every key, also revoked ones, the newest first."""
        with self._database.read() as connection:
            return keys.every(connection)

    def revoke(self, id: str) -> KeyRow:
        """Refuse the key from now on; other servers do within a second. Raise KeyNotFound. May be called twice."""
        with self._database.begin() as connection:
            keys.revoke(connection, id, time.time())
            row = keys.find(connection, id)
        if row is None:
            raise KeyNotFound(f"there is no key {id[:80]}")
        with self._lock:
            self._seen.clear()
        return row

    def find(self, secret: str) -> KeyRow | None:
        """Return the key in force with this secret; ask the database unless it answered within the last second."""
        return self.seen(secret) or self._looked_up(_digest(secret))

    def seen(self, secret: str) -> KeyRow | None:
        """Do as `find` without asking the database: None also for a key that it was not asked about within a second."""
        with self._lock:
            row, time_seen = self._seen.get(_digest(secret), (None, 0.0))
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
        return None if time_read < since else _digest(secret) in digests

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
    """Return the keys of the database that the settings name. Raise InvalidOption, ServiceError."""
    with closing(Database(url_of_settings(settings().cache_dir))) as database:
        yield Keys(database)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()


def _random(letters: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(letters))
