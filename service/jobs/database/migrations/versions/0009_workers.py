"""Workers: what the machine of each is, what a job needs of one, and what jobs print while they run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["upgrade"]

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add them. Jobs that wait go to whoever is free, as they would have."""
    for column in (
        sa.Column("role", sa.String(length=16), nullable=False, server_default=sa.text("'server'")),
        sa.Column("slots", sa.Integer(), nullable=False, server_default=sa.text("1")),
        sa.Column("tune_slots", sa.Integer(), nullable=False, server_default=sa.text("1")),
        sa.Column("machine", sa.JSON(none_as_null=True), nullable=True),
    ):
        op.add_column("instances", column)
    for column in (
        sa.Column("needs", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("needs_key", sa.String(length=64), nullable=False, server_default=sa.text("''")),
        sa.Column("missing", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("missing_since", sa.Double(), nullable=True),
    ):
        op.add_column("jobs", column)
    op.create_index("ix_jobs_state_needs", "jobs", ["state", "needs_key", "kind"], unique=False)
    op.create_table(
        "job_logs",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_job_logs_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "start", name=op.f("pk_job_logs")),
    )
