"""Owners above keys: each key that there is becomes the key of an owner of the same id, who has what the key had.

Weight and webhook secret are the owner's from now on. `k_local` is everybody where the server has no keys; it has no
quotas.
"""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

__all__ = ["upgrade"]

revision = "0005"
down_revision = "0004"

_owners = sa.table(
    "owners",
    *map(sa.column, ("id", "name", "weight")),
    sa.column("quotas", sa.JSON()),
    *map(sa.column, ("webhook_secret", "created")),
)
_keys = sa.table("api_keys", *map(sa.column, ("id", "owner", "name", "weight", "webhook_secret", "created")))
_audit = sa.table("audit_log", *map(sa.column, ("owner", "key")))

_LOCAL = {
    "id": "k_local",
    "name": "everybody, where there are no keys",
    "weight": 1.0,
    "quotas": {"queued_jobs": None, "running_jobs": None, "bytes": None, "tuning_hours": None},
    "webhook_secret": "",
}


def upgrade() -> None:
    """Make the table, an owner for each key, and name it where the key was named."""
    op.create_table(
        "owners",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("quotas", sa.JSON(), nullable=False),
        sa.Column("webhook_secret", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("disabled", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_owners")),
    )
    for table in ("api_keys", "audit_log"):
        op.add_column(table, sa.Column("owner", sa.String(length=64), nullable=False, server_default=sa.text("''")))
    op.create_index("ix_api_keys_owner", "api_keys", ["owner"], unique=False)
    connection = op.get_bind()
    kept = ("id", "name", "weight", "webhook_secret", "created")
    rows = connection.execute(sa.select(*(_keys.c[name] for name in kept))).mappings().all()
    made = [{**row, "quotas": {}} for row in rows]
    connection.execute(sa.insert(_owners), [*made, {**_LOCAL, "created": time.time()}])
    connection.execute(sa.update(_keys).values(owner=_keys.c.id))
    connection.execute(sa.update(_audit).values(owner=_audit.c.key))
    for column in ("weight", "webhook_secret"):
        op.drop_column("api_keys", column)
