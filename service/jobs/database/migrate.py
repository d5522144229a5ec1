"""Brings a database's tables up to date when a server starts; of several that start at once, one does it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from service.jobs.database.tables import metadata

if TYPE_CHECKING:
    from service.jobs.database.engine import Database

__all__ = ["MIGRATION_LOCK", "is_current", "migrate"]

MIGRATION_LOCK = 1
"""The name of the lock that the migrating server holds."""


def migrate(database: Database, revision: str = "head") -> None:
    """Upgrades to `revision`, in one transaction. Does nothing where the database is there already."""
    config, script = _script()

    def upgrade(current: Any, _: object) -> Any:
        return script._upgrade_revs(revision, current)  # as `alembic.command.upgrade` does, without its env.py

    environment = EnvironmentContext(config, script, fn=upgrade, destination_rev=revision)
    with environment, database.begin() as connection:
        database.take_time(connection)
        database.lock(connection, MIGRATION_LOCK)
        environment.configure(connection=connection, target_metadata=metadata)
        environment.run_migrations()


def is_current(database: Database) -> bool:
    """Whether the tables are those of this version."""
    with database.read() as connection:
        current = MigrationContext.configure(connection).get_current_heads()
    return set(current) == set(_script()[1].get_heads())


@lru_cache(maxsize=1)
def _script() -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config, ScriptDirectory.from_config(config)
