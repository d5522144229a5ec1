"""The tables' history for alembic; `service.jobs.database.migrate` runs it."""

from __future__ import annotations
