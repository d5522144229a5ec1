"""Who has which model, and what a model consists of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from service.jobs.database.rows import ModelFile, ModelRow
from service.jobs.database.tables import jobs, model_contents, model_files, models
from service.jobs.database.upsert import insert_new
from service.jobs.job import State
from service.request import ModelFormat

__all__ = ["content", "find", "insert", "owned", "remove", "remove_unused", "unused"]

_ROWS = sa.select(models, model_contents.c.format, model_contents.c.size_bytes).join(model_contents)


def insert(connection: Connection, row: ModelRow) -> bool:
    """Give `row.owner` the model; return False when it had it already. The first sender's files stay."""
    facts = {"format": row.format.value, "size_bytes": row.size_bytes, "created": row.created}
    if insert_new(connection, model_contents, digest=row.digest, **facts):
        for position, file in enumerate(row.files):
            values = {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256}
            connection.execute(sa.insert(model_files).values(digest=row.digest, position=position, **values))
    return insert_new(connection, models, owner=row.owner, digest=row.digest, name=row.name, created=row.created)


def content(connection: Connection, digest: str) -> tuple[ModelFormat, int, tuple[ModelFile, ...]] | None:
    """Return the format, the size in bytes and the files of a model, whoever has it; its own file first."""
    row = connection.execute(sa.select(model_contents).where(model_contents.c.digest == digest)).one_or_none()
    if row is None:
        return None
    wanted = sa.select(model_files).where(model_files.c.digest == digest).order_by(model_files.c.position)
    files = tuple(ModelFile(file.name, file.size_bytes, file.sha256) for file in connection.execute(wanted))
    return ModelFormat(row.format), row.size_bytes, files


def find(connection: Connection, owner: str | None, digest: str) -> ModelRow | None:
    """Return the owner's model, or anybody's where None is named."""
    wanted = _ROWS.where(models.c.digest == digest).order_by(models.c.created).limit(1)
    row = connection.execute(wanted if owner is None else wanted.where(models.c.owner == owner)).one_or_none()
    found = content(connection, digest)
    return None if row is None or found is None else _row(row, found[2])


def owned(connection: Connection, owner: str | None, limit: int) -> list[ModelRow]:
    """Return the owner's models, or everybody's where None is named, the newest first; without their files."""
    wanted = _ROWS.order_by(models.c.created.desc(), models.c.digest).limit(limit)
    wanted = wanted if owner is None else wanted.where(models.c.owner == owner)
    return [_row(row, ()) for row in connection.execute(wanted)]


def remove(connection: Connection, owner: str | None, digest: str) -> bool:
    """Take it from the owner, or from everybody where None is named; return False when nobody of them had it."""
    gone = sa.delete(models).where(models.c.digest == digest)
    gone = gone if owner is None else gone.where(models.c.owner == owner)
    return connection.execute(gone).rowcount > 0


def unused(connection: Connection) -> list[str]:
    """Return the models that nobody has and no job that lives needs."""
    return list(connection.scalars(sa.select(model_contents.c.digest).where(*_unneeded())))


def remove_unused(connection: Connection, digest: str) -> tuple[ModelFile, ...]:
    """Forget one of these and return its files; none where it is needed again."""
    found = content(connection, digest)
    gone = sa.delete(model_contents).where(model_contents.c.digest == digest, *_unneeded())
    return found[2] if found is not None and connection.execute(gone).rowcount else ()


def _unneeded() -> tuple[sa.ColumnElement[bool], ...]:
    had = sa.exists().where(models.c.digest == model_contents.c.digest)
    live = jobs.c.state.in_([State.QUEUED, State.RUNNING])
    needed = sa.exists().where(jobs.c.model == model_contents.c.digest, live)
    return ~had, ~needed


def _row(row: Row[Any], files: Sequence[ModelFile]) -> ModelRow:
    format = ModelFormat(row.format)
    return ModelRow(row.owner, row.digest, row.name, format, row.size_bytes, row.created, tuple(files))
