"""When what an owner has was last used, and the indexes that lists and retention need in a large database."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

__all__ = ["upgrade"]

revision = "0006"
down_revision = "0005"

_USED = ("models", "artifacts", "record_sets")
_INDEXES = (
    ("ix_jobs_owner_kind", "jobs", ("owner", "kind", "number")),
    ("ix_jobs_owner_model", "jobs", ("owner", "model", "number")),
    ("ix_jobs_state_number", "jobs", ("state", "number")),
    ("ix_jobs_kind", "jobs", ("kind", "number")),
    ("ix_jobs_model", "jobs", ("model", "number")),
    ("ix_model_contents_folder", "model_contents", ("folder",)),
    ("ix_model_aliases_alias", "model_aliases", ("alias",)),
    ("ix_model_aliases_digest", "model_aliases", ("digest",)),
    ("ix_artifacts_digest", "artifacts", ("digest",)),
    ("ix_record_sets_digest", "record_sets", ("digest",)),
    ("ix_deliveries_job", "deliveries", ("job",)),
    ("ix_deliveries_created", "deliveries", ("created",)),
    ("ix_audit_log_owner", "audit_log", ("owner", "time", "number")),
    ("ix_audit_log_key", "audit_log", ("key", "time", "number")),
    ("ix_audit_log_action", "audit_log", ("action", "time", "number")),
)


def upgrade() -> None:
    """Add both; what is there counts as used now, so that nobody loses it by an upgrade."""
    for name in _USED:
        op.add_column(name, sa.Column("used", sa.Double(), nullable=True))
        op.execute(sa.update(sa.table(name, sa.column("used"))).values(used=time.time()))
        op.create_index(f"ix_{name}_owner_created", name, ["owner", "created"])
        op.create_index(f"ix_{name}_created", name, ["created"])
        op.create_index(f"ix_{name}_used", name, ["used"])
    op.drop_index("ix_audit_log_time", "audit_log")
    op.create_index("ix_audit_log_time", "audit_log", ["time", "number"])
    for index, table, columns in _INDEXES:
        op.create_index(index, table, list(columns))
