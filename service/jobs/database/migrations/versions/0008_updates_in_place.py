"""PostgreSQL: a running job is updated in its page, and a list of an owner's jobs of a model reads no others."""

from __future__ import annotations

from alembic import op

__all__ = ["upgrade"]

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Leave room in new pages of `jobs`, and say that owner and model depend on one another.

    Each stage and each event updates the job's row. In a page that is full the new version goes to another page, and
    with it an entry into each of eleven indexes. A model's jobs are mostly one owner's: who takes the two for
    independent expects few rows, and sorts all of them for the newest.
    """
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE jobs SET (fillfactor = 80)")
        op.execute("CREATE STATISTICS IF NOT EXISTS st_jobs_owner_model (dependencies) ON owner, model FROM jobs")
