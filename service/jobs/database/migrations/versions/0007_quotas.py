"""What quotas count: the sizes of artifacts, bytes on their way, and how long tunings took."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["upgrade"]

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add them; a server's next sweep measures the artifacts that it has."""
    op.add_column("artifacts", sa.Column("size_bytes", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.create_table(
        "uploads",
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("touched", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "name", name=op.f("pk_uploads")),
    )
    op.create_index("ix_uploads_touched", "uploads", ["touched"], unique=False)
    op.create_index("ix_uploads_name", "uploads", ["name"], unique=False)
    op.create_table(
        "tuning_times",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("ended", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job", "epoch", name=op.f("pk_tuning_times")),
    )
    op.create_index("ix_tuning_times_owner", "tuning_times", ["owner", "ended"], unique=False)
    op.create_index("ix_tuning_times_ended", "tuning_times", ["ended"], unique=False)
