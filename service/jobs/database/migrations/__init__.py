"""The tables' history for alembic; `relaxc.service.jobs.database.migrate` runs it."""

from __future__ import annotations
