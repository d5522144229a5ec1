"""API keys: who may ask in whose name, for what, and until when. A secret is kept as its SHA-256 only."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from relaxc.service.jobs.database.rows import KeyRow
from relaxc.service.jobs.database.tables import api_keys, owners

__all__ = [
    "admins",
    "any_made",
    "any_usable",
    "digests",
    "every",
    "expire",
    "find",
    "insert",
    "of_owner",
    "of_secret",
    "revoke",
]

_ROWS = sa.select(
    api_keys, owners.c.name.label("owner_name"), owners.c.weight.label("weight"), owners.c.disabled.label("disabled")
).join(owners, owners.c.id == api_keys.c.owner)


def insert(connection: Connection, row: KeyRow, *, secret_sha256: str) -> None:
    """Add a key whose secret has this SHA-256."""
    connection.execute(
        sa.insert(api_keys).values(
            id=row.id,
            owner=row.owner_id,
            name=row.name,
            secret_sha256=secret_sha256,
            scopes=" ".join(sorted(row.scopes)),
            created=row.created,
            expires=row.expires,
            revoked=row.revoked,
        )
    )


def of_secret(connection: Connection, secret_sha256: str) -> tuple[KeyRow, str] | None:
    """Return the key whose secret has this SHA-256, in force or not, and that SHA-256 as it is kept."""
    row = connection.execute(_ROWS.where(api_keys.c.secret_sha256 == secret_sha256)).one_or_none()
    return None if row is None else (_key(row), row.secret_sha256)


def digests(connection: Connection) -> frozenset[str]:
    """Return the SHA-256 of every secret, of keys in force or not."""
    return frozenset(connection.execute(sa.select(api_keys.c.secret_sha256)).scalars())


def find(connection: Connection, id: str) -> KeyRow | None:
    """Return the key with this id."""
    row = connection.execute(_ROWS.where(api_keys.c.id == id)).one_or_none()
    return None if row is None else _key(row)


def every(connection: Connection) -> list[KeyRow]:
    """Return every key that was ever made, the newest first."""
    return [_key(row) for row in connection.execute(_ROWS.order_by(api_keys.c.created.desc()))]


def of_owner(connection: Connection, owner: str) -> list[KeyRow]:
    """Return every key that the owner ever had, the newest first."""
    found = connection.execute(_ROWS.where(api_keys.c.owner == owner).order_by(api_keys.c.created.desc()))
    return [_key(row) for row in found]


def revoke(connection: Connection, time: float, *, id: str | None = None, owner: str | None = None) -> int:
    """Refuse the key of this id, or all of this owner's, from now on; return how many were not revoked before."""
    assert (id is None) != (owner is None)
    meant = api_keys.c.id == id if id is not None else api_keys.c.owner == owner
    return connection.execute(
        sa.update(api_keys).where(meant, api_keys.c.revoked.is_(None)).values(revoked=time)
    ).rowcount


def expire(connection: Connection, id: str, time: float) -> int:
    """Have the key expire at `time`, unless it does before; return 0 where it is revoked, or is none."""
    sooner = sa.case((api_keys.c.expires < time, api_keys.c.expires), else_=time)
    in_force = api_keys.c.id == id, api_keys.c.revoked.is_(None)
    return connection.execute(sa.update(api_keys).where(*in_force).values(expires=sooner)).rowcount


def any_made(connection: Connection) -> bool:
    """Return whether a key was ever made."""
    return connection.execute(sa.select(api_keys.c.id).limit(1)).first() is not None


def any_usable(connection: Connection, time: float) -> bool:
    """Return whether some key is neither revoked, nor its owner disabled, nor, at `time`, expired."""
    return connection.execute(_usable(time).limit(1)).first() is not None


def admins(connection: Connection, time: float) -> frozenset[str]:
    """Return the owners who can ask as admins at `time`: enabled, and with a key in force that has the scope."""
    keys = (_key(row) for row in connection.execute(_usable(time).where(api_keys.c.scopes.contains("admin"))))
    return frozenset(key.owner_id for key in keys if "admin" in key.scopes)


def _usable(time: float) -> sa.Select[Any]:
    alive = api_keys.c.revoked.is_(None) & (api_keys.c.expires.is_(None) | (api_keys.c.expires > time))
    return _ROWS.where(alive, owners.c.disabled.is_(None))


def _key(row: Row[Any]) -> KeyRow:
    return KeyRow(
        id=row.id,
        name=row.name,
        scopes=frozenset(row.scopes.split()),
        owner_id=row.owner,
        owner_name=row.owner_name,
        weight=row.weight,
        created=row.created,
        expires=row.expires,
        revoked=row.revoked,
        disabled=row.disabled,
    )
