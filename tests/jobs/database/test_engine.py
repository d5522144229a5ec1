"""The database: both kinds from empty, migrations under a lock, transactions, the clock."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from relaxc.service.errors import InvalidOption, ServiceError
from relaxc.service.jobs.database import instances
from relaxc.service.jobs.database.engine import Database, now
from relaxc.service.jobs.database.migrate import migrate
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.database.tables import metadata, shares
from relaxc.service.jobs.workers.fleet import Fleet
from relaxc.service.jobs.workers.needs import Needs
from relaxc.service.lowering.target import resolve
from tests.jobs.rows import claim, find, insert, put_id
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]


def test_migrations_make_exactly_the_tables(database: Database) -> None:
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_migrating_again_changes_nothing(database: Database, database_url: str) -> None:
    with database.begin() as connection:
        connection.execute(sa.insert(shares).values(owner="k_a", finish=1.0))
    again = Database(database_url)
    with again.read() as connection:
        assert connection.scalar(sa.select(shares.c.finish)) == 1.0
    again.close()


def test_jobs_of_the_first_release_have_had_no_claim_yet(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep what they have; whoever begins one of them makes its first epoch."""
    with monkeypatch.context() as then:
        then.setattr("relaxc.service.jobs.database.engine.migrate", lambda database: migrate(database, "0001"))
        database = Database(database_url)
    id = insert(database, attempts=1)
    migrate(database)
    assert id is not None
    assert (find(database, id).epoch, find(database, id).attempts) == (0, 1)
    job = claim(database)
    assert job is not None
    assert (job.claim, job.attempts) == ((id, 1), 2)
    database.close()


def test_jobs_and_servers_from_before_there_were_workers_go_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs need nothing of a machine, and a server that does not say what it is takes everything."""
    with monkeypatch.context() as then:
        then.setattr("relaxc.service.jobs.database.engine.migrate", lambda database: migrate(database, "0008"))
        database = Database(database_url)
    waiting = put_id(database)
    with database.begin() as connection:
        instances.register(connection, "old", "here", "folder")
    migrate(database)
    (old,) = Fleet(database).every()
    assert (old.role, old.slots, old.tune_slots, old.machine) == ("server", 1, 1, None)
    assert Fleet(database).missing(JobKind.TUNE, Needs(resolve("cuda-sm90"), measures=True)) == []
    job = claim(database, instance="old")
    assert job is not None
    assert (job.id, job.missing) == (waiting, None)
    database.close()


def test_the_tables_of_a_later_version_are_refused_with_a_remedy(database: Database, database_url: str) -> None:
    """After a step back to an older relaxc."""
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ServiceError, match="a later version of relaxc") as refused:
        Database(database_url)
    assert "upgrade" in refused.value.remedy
    with database.begin() as connection:  # nothing was changed, and nobody holds it
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == "9999"


@pytest.mark.slow
def test_servers_that_start_at_once_migrate_once(database_url: str) -> None:
    code = f"from relaxc.service.jobs.database.engine import Database; Database({database_url!r}).close()"
    starting = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for process in starting:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors


def test_a_transaction_is_undone_when_its_block_raises(database: Database) -> None:
    with pytest.raises(KeyError), database.begin() as connection:
        connection.execute(sa.insert(shares).values(owner="k_a", finish=1.0))
        raise KeyError
    with database.read() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(shares)) == 0


def test_a_reader_sees_one_moment(database: Database) -> None:
    """A model's row and its files are two SELECTs: between them nothing may go."""
    row = sa.select(shares.c.finish).where(shares.c.owner == "k_a")
    with database.begin() as connection:
        connection.execute(sa.insert(shares).values(owner="k_a", finish=1.0))
    with database.read() as reader:
        assert reader.scalar(row) == 1.0
        with database.begin() as writer:
            writer.execute(sa.delete(shares))
        assert reader.scalar(row) == 1.0
    with database.read() as reader:
        assert reader.scalar(row) is None


def test_writers_of_many_threads_all_get_their_turn(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(sa.insert(shares).values(owner="k_a", finish=0.0))

    def work() -> None:
        for _ in range(10):
            with database.begin() as connection:
                database.lock(connection, 9)
                value = connection.scalar(sa.select(shares.c.finish))
                assert value is not None
                connection.execute(sa.update(shares).values(finish=value + 1))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as connection:
        assert connection.scalar(sa.select(shares.c.finish)) == 80


def test_the_clock_is_unix_time(database: Database) -> None:
    with database.read() as connection:
        first = connection.scalar(sa.select(now()))
    assert first is not None
    assert abs(first - time.time()) < PATIENCE_S


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "no url at all"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidOption):
        Database(url)


def test_a_database_that_does_not_answer_is_an_error_without_secrets(tmp_path: Path) -> None:
    with pytest.raises(ServiceError) as caught:
        Database(f"postgresql://user:hunter2@/x?host={tmp_path}")
    assert "hunter2" not in str(caught.value)
    assert "does not answer" in caught.value.message
