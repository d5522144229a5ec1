"""API keys: who may ask, for what, and until when. A secret is kept as its SHA-256 only."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from service.jobs.database.rows import KeyRow
from service.jobs.database.tables import api_keys

__all__ = ["any_made", "any_usable", "digests", "every", "find", "insert", "of_secret", "revoke"]


def insert(connection: Connection, row: KeyRow, *, secret_sha256: str) -> None:
    """Add a key whose secret has this SHA-256."""
    connection.execute(
        sa.insert(api_keys).values(
            id=row.id,
            name=row.name,
            secret_sha256=secret_sha256,
            scopes=" ".join(sorted(row.scopes)),
            weight=row.weight,
            webhook_secret=row.webhook_secret,
            created=row.created,
            expires=row.expires,
            revoked=row.revoked,
        )
    )


def of_secret(connection: Connection, secret_sha256: str) -> tuple[KeyRow, str] | None:
    """Return the key whose secret has this SHA-256, in force or not, and that SHA-256 as it is kept."""
    row = connection.execute(sa.select(api_keys).where(api_keys.c.secret_sha256 == secret_sha256)).one_or_none()
    return None if row is None else (_key(row), row.secret_sha256)


def digests(connection: Connection) -> frozenset[str]:
    """Return the SHA-256 of every secret, of keys in force or not."""
    return frozenset(connection.execute(sa.select(api_keys.c.secret_sha256)).scalars())


def find(connection: Connection, id: str) -> KeyRow | None:
    """Return the key with this id."""
    row = connection.execute(sa.select(api_keys).where(api_keys.c.id == id)).one_or_none()
    return None if row is None else _key(row)


def every(connection: Connection) -> list[KeyRow]:
    """Return every key that was ever made, the newest first."""
    return [_key(row) for row in connection.execute(sa.select(api_keys).order_by(api_keys.c.created.desc()))]


def revoke(connection: Connection, id: str, time: float) -> bool:
    """Refuse the key from now on; return False when there is none in force."""
    in_force = (api_keys.c.id == id) & api_keys.c.revoked.is_(None)
    return connection.execute(sa.update(api_keys).where(in_force).values(revoked=time)).rowcount > 0


def any_made(connection: Connection) -> bool:
    """Return whether a key was ever made."""
    return connection.execute(sa.select(api_keys.c.id).limit(1)).first() is not None


def any_usable(connection: Connection, time: float) -> bool:
    """Return whether some key is neither revoked nor, at `time`, expired."""
    alive = api_keys.c.revoked.is_(None) & (api_keys.c.expires.is_(None) | (api_keys.c.expires > time))
    return connection.execute(sa.select(api_keys.c.id).where(alive).limit(1)).first() is not None


def _key(row: Row[tuple[object, ...]]) -> KeyRow:
    return KeyRow(
        id=row.id,
        name=row.name,
        scopes=frozenset(row.scopes.split()),
        weight=row.weight,
        webhook_secret=row.webhook_secret,
        created=row.created,
        expires=row.expires,
        revoked=row.revoked,
    )
