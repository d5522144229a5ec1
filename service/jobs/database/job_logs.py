"""What running jobs have printed until now, for who asks a server that does not run them."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import events
from relaxc.service.jobs.database.rows import JobRow
from relaxc.service.jobs.database.tables import job_logs
from relaxc.service.jobs.database.transitions import held

__all__ = ["append", "read"]


def append(connection: Connection, job: JobRow, start: int, data: bytes) -> bool:
    """Add what follows the first `start` bytes; write nothing and return False where the claim is over."""
    if not events.append(connection, job.id, (), *held(job.claim)):
        return False
    connection.execute(sa.insert(job_logs).values(job=job.id, start=start, data=data))
    return True


def read(connection: Connection, id: str) -> bytes:
    """Return what there is, in order."""
    found = sa.select(job_logs.c.data).where(job_logs.c.job == id).order_by(job_logs.c.start)
    return b"".join(connection.scalars(found))
