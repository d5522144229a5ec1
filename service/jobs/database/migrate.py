"""Brings a database's tables up to date when a server starts; of several that start at once, one does it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory

from service.jobs.database.tables import metadata

if TYPE_CHECKING:
    from service.jobs.database.engine import Database

__all__ = ["MIGRATION_LOCK", "migrate"]

MIGRATION_LOCK = 1
"""The name of the lock that the migrating server holds."""


def migrate(database: Database, revision: str = "head") -> None:
    """Upgrades to `revision`, in one transaction. Does nothing where the database is there already."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    script = ScriptDirectory.from_config(config)

    def upgrade(current: Any, _: object) -> Any:
        return script._upgrade_revs(revision, current)  # as `alembic.command.upgrade` does, without its env.py

    environment = EnvironmentContext(config, script, fn=upgrade, destination_rev=revision)
    with environment, database.begin() as connection:
        database.lock(connection, MIGRATION_LOCK)
        environment.configure(connection=connection, target_metadata=metadata)
        environment.run_migrations()
