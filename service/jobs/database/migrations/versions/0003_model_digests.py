"""Models are named by what the server hashed: digests that a child had computed become aliases of these.

A model of one file keeps its digest, the SHA-256 of the file. One with external data gets another, out of the SHA-256
of its files, which the server had computed itself; whoever had the model may go on to name it by the old one, and
nobody else. A model of one file that is not named by that file's SHA-256 was named by a child that lied: it gets its
own name, and the stolen one leads nowhere.
"""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op
from sqlalchemy.engine import Connection

__all__ = ["upgrade"]

revision = "0003"
down_revision = "0002"

_contents = sa.table("model_contents", *map(sa.column, ("digest", "format", "size_bytes", "created", "folder")))
_files = sa.table("model_files", *map(sa.column, ("digest", "position", "name", "size_bytes", "sha256")))
_models = sa.table("models", *map(sa.column, ("owner", "digest", "name", "created")))
_aliases = sa.table("model_aliases", *map(sa.column, ("owner", "alias", "digest")))
_jobs = sa.table("jobs", sa.column("model"))

_File = tuple[str, str]
"""Name and SHA-256."""


def upgrade() -> None:
    """Add where a model's files are and its aliases, and give every model the name that its files have."""
    op.add_column("model_contents", sa.Column("folder", sa.String(length=80), nullable=True))
    op.create_table(
        "model_aliases",
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("alias", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner", "digest"],
            ["models.owner", "models.digest"],
            name=op.f("fk_model_aliases_models"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("owner", "alias", name=op.f("pk_model_aliases")),
    )
    connection = op.get_bind()
    wrong = _misnamed(connection)
    for old in wrong:  # first out of the way: the right name of one may be what another was given by a lie
        _rename(connection, old, _between(old))
    for old, files in wrong.items():
        _rename(connection, _between(old), _right(files), alias=old if len(files) > 1 else None)
    _measure(connection)


def _misnamed(connection: Connection) -> dict[str, list[_File]]:
    """The models that are not named by the SHA-256 of their one file, with their files, the model's own first.

    Some have files that they do not need, and are named by their own alone: these files are forgotten.
    """
    suspect = sa.select(_files.c.digest).where(sa.or_(_files.c.position > 0, _files.c.sha256 != _files.c.digest))
    rows = sa.select(_files).where(_files.c.digest.in_(suspect)).order_by(_files.c.digest, _files.c.position)
    found: dict[str, list[_File]] = {}
    for row in connection.execute(rows):
        found.setdefault(row.digest, []).append((row.name, row.sha256))
    whole = [digest for digest, files in found.items() if files[0][1] == digest]
    for digest in whole:
        del found[digest]
        connection.execute(sa.delete(_files).where(_files.c.digest == digest, _files.c.position > 0))
    return found


def _between(digest: str) -> str:
    """A name that no model has."""
    return hashlib.sha256(f"0003 {digest}".encode()).hexdigest()


def _right(files: list[_File]) -> str:
    """As `relaxc.service.request.model_digest` is when this is written."""
    (_, own), *data = files
    text = json.dumps({"data": dict(data), "model": own}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest() if data else own


def _rename(connection: Connection, old: str, new: str, *, alias: str | None = None) -> None:
    """Give the model `old` the name `new`, and its owners the alias; where there is a `new`, it has the same files."""
    if connection.execute(sa.select(_contents.c.digest).where(_contents.c.digest == new)).first() is None:
        same = (_contents.c.format, _contents.c.size_bytes, _contents.c.created)
        folder = sa.func.coalesce(_contents.c.folder, _contents.c.digest)  # nothing is moved
        row = sa.select(sa.literal(new), *same, folder).where(_contents.c.digest == old)
        connection.execute(
            sa.insert(_contents).from_select(["digest", "format", "size_bytes", "created", "folder"], row)
        )
        connection.execute(sa.update(_files).where(_files.c.digest == old).values(digest=new))
    has = sa.select(_models.c.owner).where(_models.c.digest == new)
    theirs = (_models.c.owner, sa.literal(new), _models.c.name, _models.c.created)
    owned = sa.select(*theirs).where(_models.c.digest == old, _models.c.owner.not_in(has))
    connection.execute(sa.insert(_models).from_select(["owner", "digest", "name", "created"], owned))
    if alias is not None:
        known = sa.select(_models.c.owner, sa.literal(alias), sa.literal(new)).where(_models.c.digest == old)
        connection.execute(sa.insert(_aliases).from_select(["owner", "alias", "digest"], known))
    connection.execute(sa.update(_jobs).where(_jobs.c.model == old).values(model=new))
    connection.execute(sa.delete(_models).where(_models.c.digest == old))
    connection.execute(sa.delete(_contents).where(_contents.c.digest == old))  # and with it files that are left


def _measure(connection: Connection) -> None:
    """The size of a model is that of its files; it was a child's word."""
    mine = _files.c.digest == _contents.c.digest
    total = sa.select(sa.func.sum(_files.c.size_bytes)).where(mine).scalar_subquery()
    connection.execute(sa.update(_contents).where(sa.exists().where(mine)).values(size_bytes=total))
