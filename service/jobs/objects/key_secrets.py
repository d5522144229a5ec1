"""The secret of a key: made and shown once, kept as its SHA-256."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relaxc.service.jobs.database import keys
from relaxc.service.jobs.database.rows import KeyRow
from relaxc.service.jobs.objects.owners import random_letters

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["SECRET_PREFIX", "NewKey", "digest_of", "insert", "new_id"]

SECRET_PREFIX = "rk_"
_SECRET_LETTERS = 43
"""62⁴³ > 2²⁵⁶. A secret of that many random bits is not to be guessed, also not from its hash: a slow hash (argon2),
which makes up for weak passwords, would only make every request slow."""

_ID_LETTERS = 12


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made, with what is never shown again: the webhooks' secret where its owner was made too."""

    row: KeyRow
    secret: str
    webhook_secret: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, with its secrets."""
        return {**self.row.to_dict(), "secret": self.secret, "webhook_secret": self.webhook_secret}


def insert(connection: Connection, row: KeyRow) -> str:
    """Put the key into the database and return its secret."""
    secret = SECRET_PREFIX + random_letters(_SECRET_LETTERS)
    keys.insert(connection, row, secret_sha256=digest_of(secret))
    return secret


def new_id() -> str:
    """Return the id of a key that there is not yet."""
    return "k_" + random_letters(_ID_LETTERS)


def digest_of(secret: str) -> str:
    """Return what is kept of a secret; of what is none, something that no key has."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
