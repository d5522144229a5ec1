"""The epoch of a job's claim: 0 for jobs that no server of this version has begun."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["upgrade"]

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column."""
    op.add_column("jobs", sa.Column("epoch", sa.Integer(), nullable=False, server_default=sa.text("0")))
