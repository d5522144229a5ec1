"""Migration 0005 over both databases: every key keeps all that it had, under an owner of its id."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest
import sqlalchemy as sa

from relaxc.service.jobs.database import artifacts, audit, idempotency, jobs, models, owners, records, shares
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.migrate import migrate
from relaxc.service.jobs.database.tables import audit_log
from relaxc.service.jobs.objects.keys import Keys
from relaxc.service.jobs.objects.owners import Owners
from tests.jobs.rows import claim, put, put_id

SECRET, ID = "rk_" + "a" * 43, "k_aaaaaaaaaaaa"
DIGEST = "d" * 64


def insert(database: Database, table: str, **columns: Any) -> None:
    """A row, as an older version put it."""
    with database.begin() as connection:
        connection.execute(sa.insert(sa.table(table, *map(sa.column, columns))).values(**columns))


def key(database: Database, id: str, secret: str, weight: float = 1.0) -> None:
    """A key as it was kept before 0005."""
    facts = {"name": "ci", "scopes": "compile read", "webhook_secret": f"whsec_{id}", "created": 1.0, "weight": weight}
    insert(database, "api_keys", id=id, secret_sha256=hashlib.sha256(secret.encode()).hexdigest(), **facts)


@pytest.fixture
def migrated(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database that 0004 made, with a key that has one of everything, and its twin of the same name with nothing."""
    with monkeypatch.context() as then:
        then.setattr("relaxc.service.jobs.database.engine.migrate", lambda database: migrate(database, "0004"))
        database = Database(database_url)
    now = time.time()
    key(database, ID, SECRET, weight=3.0)
    key(database, "k_bbbbbbbbbbbb", "rk_" + "b" * 43)
    put_id(database, owner=ID, request_key="e" * 64, weight=3.0)
    mine: dict[str, Any] = {"owner": ID, "created": now}
    insert(database, "model_contents", digest=DIGEST, format="onnx", size_bytes=7, created=now)
    insert(database, "models", digest=DIGEST, name="m", **mine)
    insert(database, "model_aliases", owner=ID, alias="a" * 64, digest=DIGEST)
    insert(database, "artifacts", digest=DIGEST, **mine)
    insert(database, "record_sets", digest=DIGEST, name="r", count=1, size_bytes=9, **mine)
    insert(database, "idempotency", key="once", body=DIGEST, job="j_x", **mine)
    insert(database, "shares", owner=ID, finish=42.0)
    with database.begin() as connection:
        row = {"time": now, "key": ID, "action": "POST /v1/jobs", "object": "", "outcome": "202", "address": "::1"}
        old = sa.table("audit_log", *map(sa.column, row), sa.column("detail", sa.JSON()))
        connection.execute(sa.insert(old).values(**row, detail={}))
    migrate(database)
    return database


def test_a_key_keeps_what_it_had_under_an_owner_of_its_id(migrated: Database) -> None:
    row = Keys(migrated).find(SECRET)
    assert row is not None
    assert (row.id, row.owner_id, row.weight, row.scopes) == (ID, ID, 3.0, {"compile", "read"})
    with migrated.read() as connection:
        whose = owners.find(connection, ID)
        assert whose is not None
        assert (whose.name, whose.weight, whose.webhook_secret, whose.quotas) == ("ci", 3.0, f"whsec_{ID}", {})
        assert models.find(connection, ID, "a" * 64) == models.find(connection, ID, DIGEST) is not None
        assert artifacts.has(connection, ID, DIGEST)
        assert records.find(connection, ID, DIGEST) is not None
        assert idempotency.find(connection, ID, "once") is not None
        assert jobs.find_live(connection, ID, "e" * 64) is not None
        assert shares.start_tags(connection, [ID]) == {ID: 42.0}
        assert [(line.owner, line.key) for line in audit.newest(connection, 9)] == [(ID, ID)]
        assert connection.scalar(sa.select(audit_log.c.owner)) == ID
    migrated.close()


def test_its_successor_has_all_of_it_and_its_twin_nothing(migrated: Database) -> None:
    keys = Keys(migrated)
    successor, second = keys.rotate(ID), keys.create("laptop", ["read"], owner=ID)
    twin = keys.find("rk_" + "b" * 43)
    assert keys.find(SECRET) is None
    assert twin is not None
    for row, has in ((successor.row, True), (second.row, True), (twin, False)):
        with migrated.read() as connection:
            assert artifacts.has(connection, row.owner.id, DIGEST) is has
            assert (models.find(connection, row.owner.id, DIGEST) is not None) is has
            assert (jobs.find_live(connection, row.owner.id, "e" * 64) is not None) is has
    migrated.close()


def test_the_jobs_of_a_disabled_owner_wait(migrated: Database) -> None:
    people = Owners(migrated)
    people.change(ID, disabled=True)
    assert claim(migrated) is None
    other = put(migrated, owner="k_bbbbbbbbbbbb")
    claimed = claim(migrated)
    assert claimed is not None
    assert claimed.id == other.id
    people.change(ID, disabled=False)
    claimed = claim(migrated)
    assert claimed is not None
    assert claimed.owner == ID
    migrated.close()
