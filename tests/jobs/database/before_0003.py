"""Models as they were kept before migration 0003, when a child said what they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.migrate import migrate
from relaxc.service.jobs.database.tables import model_contents, model_files, models

__all__ = ["former", "former_tables", "put_model", "sha256"]


def sha256(content: bytes) -> str:
    """In hex."""
    return hashlib.sha256(content).hexdigest()


def former(own: bytes, data: Mapping[str, bytes]) -> str:
    """The digest that an honest child computed, of data in the order in which the graph uses it."""
    return sha256(own + b"".join(n.encode() + b"\0" + len(c).to_bytes(8, "little") + c for n, c in data.items()))


@contextmanager
def former_tables(url: str) -> Iterator[Database]:
    """The database with the tables of 0002."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relaxc.service.jobs.database.engine.migrate", lambda database: migrate(database, "0002"))
        database = Database(url)
    yield database
    database.close()


def put_model(
    database: Database,
    digest: str,
    owners: tuple[str, ...],
    own: bytes,
    data: Mapping[str, bytes] | None = None,
    *,
    blobs: Path | None = None,
    format: str = "onnx",
) -> None:
    """Its rows, and where `blobs` is a folder, its files."""
    files = {"net.onnx": own, **(data or {})}
    with database.begin() as connection:
        connection.execute(sa.insert(model_contents).values(digest=digest, format=format, size_bytes=1, created=1.0))
        for position, (name, content) in enumerate(files.items()):
            row = {"digest": digest, "position": position, "name": name, "size_bytes": len(content)}
            connection.execute(sa.insert(model_files).values(**row, sha256=sha256(content)))
        for owner in owners:
            connection.execute(sa.insert(models).values(owner=owner, digest=digest, name=f"{owner}'s", created=1.0))
    if blobs is not None:
        folder = blobs / "models" / digest
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
