"""Migration 0003 over both databases: whose models keep which digest, and which become aliases."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from relaxc.service.jobs.database import models
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.models import Content
from relaxc.service.jobs.database.rows import ModelFile
from relaxc.service.jobs.database.tables import model_aliases, model_contents
from relaxc.service.request import ModelFormat, model_digest
from tests.jobs.database.before_0003 import former, former_tables, put_model, sha256
from tests.jobs.rows import find, put_id

DATA = {"b": b"22", "a": b"1"}
ALL = model_digest(sha256(b"own"), {name: sha256(content) for name, content in DATA.items()})
BEFORE = former(b"own", DATA)


def aliases(database: Database) -> set[tuple[str, str, str]]:
    """Owner, alias, digest."""
    with database.read() as connection:
        return {tuple(row) for row in connection.execute(sa.select(model_aliases))}


def content(database: Database, digest: str) -> Content | None:
    """What the model is."""
    with database.read() as connection:
        return models.content(connection, digest)


def digests(database: Database, owner: str) -> set[str]:
    """Those of the owner's models."""
    with database.read() as connection:
        return {row.digest for row in models.owned(connection, owner, 10)}


def found(database: Database, owner: str | None, digest: str) -> str | None:
    """What the owner gets who asks for this one."""
    with database.read() as connection:
        row = models.find(connection, owner, digest)
    return None if row is None else row.digest


def test_one_file_keeps_its_digest(database_url: str) -> None:
    with former_tables(database_url) as old:
        put_model(old, sha256(b"own"), ("ann", "bob"), b"own", format="pt2")
    database = Database(database_url)
    plain = Content(ModelFormat.PT2, 3, (ModelFile("net.onnx", 3, sha256(b"own")),), sha256(b"own"))
    assert content(database, sha256(b"own")) == plain
    assert digests(database, "ann") == digests(database, "bob") == {sha256(b"own")}
    assert aliases(database) == set()
    database.close()


def test_a_file_that_the_digest_did_not_cover_is_forgotten(database_url: str) -> None:
    with former_tables(database_url) as old:
        put_model(old, sha256(b"own"), ("ann",), b"own", {"superfluous": b"x"})
    database = Database(database_url)
    kept = content(database, sha256(b"own"))
    assert kept is not None
    assert [file.name for file in kept.files] == ["net.onnx"]
    assert digests(database, "ann") == {sha256(b"own")}
    database.close()


def test_external_data_gives_another_digest_and_the_old_one_is_an_alias(database_url: str) -> None:
    with former_tables(database_url) as old:
        put_model(old, BEFORE, ("ann", "bob"), b"own", DATA)
        job = put_id(old, owner="ann", model=BEFORE)
    database = Database(database_url)
    files = tuple(ModelFile(n, len(c), sha256(c)) for n, c in {"net.onnx": b"own", **DATA}.items())
    assert content(database, ALL) == Content(ModelFormat.ONNX, 6, files, BEFORE)
    assert content(database, BEFORE) is None
    assert aliases(database) == {("ann", BEFORE, ALL), ("bob", BEFORE, ALL)}
    for owner in ("ann", "bob", None):
        assert found(database, owner, BEFORE) == found(database, owner, ALL) == ALL
    assert found(database, "eve", BEFORE) is found(database, "eve", ALL) is None
    assert find(database, job).model == ALL
    with database.begin() as connection:
        assert models.unused(connection) == []
        assert not models.remove(connection, "eve", BEFORE)
        assert models.remove(connection, "ann", BEFORE)
        assert not models.remove(connection, "ann", BEFORE)
    assert aliases(database) == {("bob", BEFORE, ALL)}
    assert found(database, "ann", BEFORE) is None
    assert found(database, "bob", BEFORE) == ALL
    database.close()


def test_a_digest_that_a_child_stole_leads_nowhere(database_url: str) -> None:
    stolen, other = sha256(b"another's"), sha256(b"evil")
    with former_tables(database_url) as old:
        put_model(old, stolen, ("eve", "ann"), b"evil")
    database = Database(database_url)
    assert content(database, stolen) is None
    assert found(database, "ann", stolen) is found(database, None, stolen) is None
    kept = content(database, other)
    assert kept is not None
    assert (kept.files, kept.folder) == ((ModelFile("net.onnx", 4, other),), stolen)
    assert aliases(database) == set()
    database.close()


def test_models_that_have_each_others_digests_are_told_apart(database_url: str) -> None:
    one, two, three = b"one", b"two", b"three"
    with former_tables(database_url) as old:
        put_model(old, sha256(one), ("eve",), two)
        put_model(old, sha256(two), ("eve", "mal"), one)
        put_model(old, sha256(b"x"), ("ann",), three)
        put_model(old, sha256(three), ("ann", "bob"), three)
        jobs = {content: put_id(old, owner="eve", model=sha256(stored)) for stored, content in ((one, two), (two, one))}
    database = Database(database_url)
    for each in (one, two, three):
        kept = content(database, sha256(each))
        assert kept is not None
        assert [file.sha256 for file in kept.files] == [sha256(each)]
    assert digests(database, "eve") == {sha256(one), sha256(two)}
    assert digests(database, "mal") == {sha256(one)}
    assert digests(database, "ann") == digests(database, "bob") == {sha256(three)}
    assert {content: find(database, job).model for content, job in jobs.items()} == {
        content: sha256(content) for content in jobs
    }
    with database.read() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(model_contents)) == 3
    database.close()


@pytest.mark.parametrize("exact", [False, True])
def test_a_model_of_that_very_digest_goes_before_an_alias(database_url: str, exact: bool) -> None:
    with former_tables(database_url) as old:
        put_model(old, sha256(b"plain"), ("ann",), b"own", DATA)  # a child lied
    database = Database(database_url)
    assert found(database, "ann", sha256(b"plain")) == ALL
    if exact:
        put_model(database, sha256(b"plain"), ("ann",), b"plain")
        assert found(database, "ann", sha256(b"plain")) == sha256(b"plain")
    database.close()
