"""Who has which model, and what a model consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from relaxc.service.jobs.database import uses
from relaxc.service.jobs.database.rows import ModelFile, ModelRow
from relaxc.service.jobs.database.tables import jobs, model_aliases, model_contents, model_files, models
from relaxc.service.jobs.database.upsert import insert_new
from relaxc.service.jobs.job import State
from relaxc.service.request import ModelFormat

__all__ = [
    "Content",
    "aliases",
    "content",
    "digests",
    "find",
    "has",
    "insert",
    "meant",
    "owned",
    "remove",
    "remove_unused",
    "unused",
]

_ROWS = sa.select(models, model_contents.c.format, model_contents.c.size_bytes).join(model_contents)


@dataclass(frozen=True, slots=True)
class Content:
    """What a model consists of, whoever has it: its own file first; `folder` has them among the blobs."""

    format: ModelFormat
    size_bytes: int
    files: tuple[ModelFile, ...]
    folder: str


def insert(connection: Connection, row: ModelRow, folder: str) -> bool:
    """Give `row.owner` the model; return False when it had it already. Files that are there stay where they are.

    Format and size are what the server has found now: before 0003 they were a child's word.
    """
    facts = {"format": row.format.value, "size_bytes": row.size_bytes}
    if insert_new(connection, model_contents, digest=row.digest, created=row.created, folder=folder, **facts):
        for position, file in enumerate(row.files):
            values = {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256}
            connection.execute(sa.insert(model_files).values(digest=row.digest, position=position, **values))
    else:
        other = sa.or_(*(model_contents.c[name] != value for name, value in facts.items()))
        connection.execute(sa.update(model_contents).where(model_contents.c.digest == row.digest, other).values(facts))
    theirs = {"name": row.name, "created": row.created, "used": row.used}
    return uses.insert_or_touch(connection, models, row.owner, row.digest, **theirs)


def content(connection: Connection, digest: str) -> Content | None:
    """Return what the model consists of; no alias names one here."""
    row = connection.execute(sa.select(model_contents).where(model_contents.c.digest == digest)).one_or_none()
    if row is None:
        return None
    wanted = sa.select(model_files).where(model_files.c.digest == digest).order_by(model_files.c.position)
    files = tuple(ModelFile(file.name, file.size_bytes, file.sha256) for file in connection.execute(wanted))
    return Content(ModelFormat(row.format), row.size_bytes, files, row.folder or digest)


def digests(connection: Connection) -> list[str]:
    """Return the digests of all models, in order."""
    return list(connection.scalars(sa.select(model_contents.c.digest).order_by(model_contents.c.digest)))


def meant(connection: Connection, owner: str | None, digest: str) -> str:
    """Return the digest of the model that `owner`, or anybody where None is named, means by this one or by an alias.

    What is no alias stays as it is. An alias is its owner's own, and a model of that very digest goes before it.
    """
    had = sa.select(models.c.digest).where(models.c.digest == digest)
    known = sa.select(model_aliases.c.digest).where(model_aliases.c.alias == digest)
    if owner is not None:
        had, known = had.where(models.c.owner == owner), known.where(model_aliases.c.owner == owner)
    return connection.scalar(had.limit(1)) or connection.scalar(known.limit(1)) or digest


def aliases(connection: Connection, owner: str | None, digest: str) -> tuple[str, ...]:
    """Return the other digests by which `owner`, or anybody where None is named, may name this model."""
    wanted = sa.select(model_aliases.c.alias).distinct().where(model_aliases.c.digest == digest)
    wanted = wanted if owner is None else wanted.where(model_aliases.c.owner == owner)
    return tuple(sorted(connection.scalars(wanted)))


def find(connection: Connection, owner: str | None, digest: str) -> ModelRow | None:
    """Return the owner's model, or anybody's where None is named, by its digest or an alias."""
    digest = meant(connection, owner, digest)
    wanted = _ROWS.where(models.c.digest == digest).order_by(models.c.created).limit(1)
    row = connection.execute(wanted if owner is None else wanted.where(models.c.owner == owner)).one_or_none()
    found = content(connection, digest)
    return None if row is None or found is None else _row(row, found.files)


def has(connection: Connection, owner: str, digest: str) -> bool:
    """Return whether the owner has the model of this very digest."""
    wanted = sa.select(sa.literal(1)).where(models.c.owner == owner, models.c.digest == digest)
    return connection.scalar(wanted) is not None


def owned(connection: Connection, owner: str | None, limit: int) -> list[ModelRow]:
    """Return the owner's models, or everybody's where None is named, the newest first; without their files."""
    wanted = _ROWS.order_by(models.c.created.desc(), models.c.digest).limit(limit)
    wanted = wanted if owner is None else wanted.where(models.c.owner == owner)
    return [_row(row, ()) for row in connection.execute(wanted)]


def remove(connection: Connection, owner: str | None, digest: str) -> bool:
    """Take it, named by its digest or an alias, from the owner, or from everybody where None is named.

    Return False when nobody of them had it. Aliases go with it.
    """
    gone = sa.delete(models).where(models.c.digest == meant(connection, owner, digest))
    gone = gone if owner is None else gone.where(models.c.owner == owner)
    return connection.execute(gone).rowcount > 0


def unused(connection: Connection) -> list[str]:
    """Return the models that nobody has and no job that lives needs."""
    return list(connection.scalars(sa.select(model_contents.c.digest).where(*_unneeded())))


def remove_unused(connection: Connection, digest: str) -> Content | None:
    """Forget one of these and return what it was; None where it is needed again."""
    found = content(connection, digest)
    gone = sa.delete(model_contents).where(model_contents.c.digest == digest, *_unneeded())
    return found if found is not None and connection.execute(gone).rowcount else None


def _unneeded() -> tuple[sa.ColumnElement[bool], ...]:
    had = sa.exists().where(models.c.digest == model_contents.c.digest)
    live = jobs.c.state.in_([State.QUEUED, State.RUNNING])
    needed = sa.exists().where(jobs.c.model == model_contents.c.digest, live)
    return ~had, ~needed


def _row(row: Row[Any], files: Sequence[ModelFile]) -> ModelRow:
    format = ModelFormat(row.format)
    facts = row.owner, row.digest, row.name, format, row.size_bytes, row.created, row.used
    return ModelRow(*facts, tuple(files))
