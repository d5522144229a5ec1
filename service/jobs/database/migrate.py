"""Brings a database's tables up to date when a server starts; of several that start at once, one does it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.database.tables import metadata

__all__ = ["MIGRATION_LOCK", "is_current", "migrate"]

MIGRATION_LOCK = 1
"""The name of the lock that the migrating server holds."""


class Transactions(Protocol):
    """What a migration needs of `engine.Database`, which migrates itself when it is opened."""

    def begin(self) -> AbstractContextManager[Connection]: ...
    def read(self) -> AbstractContextManager[Connection]: ...
    def lock(self, connection: Connection, name: int) -> None: ...
    def take_time(self, connection: Connection) -> None: ...


def migrate(database: Transactions, revision: str = "head") -> None:
    """Upgrade to `revision`, in one transaction; do nothing where the database is there already.

    Raise ServiceError where a later version of relaxc has been at it.
    """
    config, script = _script()

    def upgrade(current: Any, _: object) -> Any:
        if not set(current) <= {each.revision for each in script.walk_revisions()}:
            raise ServiceError(
                "the database has the tables of a later version of relaxc",
                remedy="Install that version again, or restore the backup from before the upgrade (docs/deploying.md).",
            )
        return script._upgrade_revs(revision, current)  # as `alembic.command.upgrade` does, without its env.py

    environment = EnvironmentContext(config, script, fn=upgrade, destination_rev=revision)
    with environment, database.begin() as connection:
        database.take_time(connection)
        database.lock(connection, MIGRATION_LOCK)
        environment.configure(connection=connection, target_metadata=metadata)
        environment.run_migrations()


def is_current(database: Transactions) -> bool:
    """Return whether the tables are those of this version."""
    with database.read() as connection:
        current = MigrationContext.configure(connection).get_current_heads()
    return set(current) == set(_script()[1].get_heads())


@lru_cache(maxsize=1)
def _script() -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config, ScriptDirectory.from_config(config)
