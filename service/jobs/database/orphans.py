"""Which names of blobs the database knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from relaxc.service.jobs.database import uses
from relaxc.service.jobs.database.tables import artifacts, jobs, model_contents, record_sets
from relaxc.service.jobs.database.uses import Needed

__all__ = ["KINDS", "LOCAL", "unknown"]

_Names = Sequence[str]


def _folders(names: _Names) -> sa.Select[Any] | sa.CompoundSelect[Any]:
    """By two indexes; before 0003 a model's folder was its digest."""
    named = sa.select(model_contents.c.folder).where(model_contents.c.folder.in_(names))
    former = model_contents.c.folder.is_(None), model_contents.c.digest.in_(names)
    return sa.union_all(named, sa.select(model_contents.c.digest).where(*former))


_KNOWN: dict[str, Callable[[_Names], sa.Select[Any] | sa.CompoundSelect[Any]]] = {
    "jobs": lambda names: sa.select(jobs.c.id).where(jobs.c.id.in_(names)),
    "models": _folders,
    "records": lambda names: sa.select(record_sets.c.digest).where(record_sets.c.digest.in_(names)),
    "artifacts": lambda names: sa.select(artifacts.c.digest).where(artifacts.c.digest.in_(names)),
}

_NEEDED: dict[str, Callable[[Needed], frozenset[str]]] = {
    "records": lambda needed: needed.record_sets,
    "artifacts": lambda needed: needed.artifacts,
}
"""Of what an owner may forget while a job of his waits with it; a model's content stays by itself."""

KINDS = tuple(_KNOWN)
"""The kinds of blobs whose second name is the id of a row."""

LOCAL = tuple(kind for kind in KINDS if kind != "artifacts")
"""Those that are in the folder; artifacts are in the bucket alone."""


def unknown(connection: Connection, kind: str, names: Sequence[str]) -> list[str]:
    """Those of `names`, a few hundred at most, that no row has and no live job needs."""
    known = {row[0] for row in connection.execute(_KNOWN[kind](names))}
    if kind in _NEEDED:
        known |= _NEEDED[kind](uses.needed(connection))
    return [name for name in names if name not in known]
