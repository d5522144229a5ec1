"""The audit log as an admin reads it: a page of it, or all of it from the oldest row on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption
from relaxc.service.jobs.database import audit
from relaxc.service.jobs.database.engine import Database, url_of_settings
from relaxc.service.jobs.database.rows import AuditFilter, AuditPage, AuditRow

__all__ = ["Audit", "open_audit"]

_MAX_PAGE = 1000
_AT_ONCE = 500


class Audit:
    """The rows of one database. Methods may be called from any thread; that an admin asks is the caller's to check."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, wanted: AuditFilter, *, limit: int = 50, cursor: str | None = None) -> AuditPage:
        """Return the rows that are wanted, the newest first. Raise InvalidOption for a wrong limit or cursor."""
        if not 1 <= limit <= _MAX_PAGE:
            raise InvalidOption(f"limit is 1 to {_MAX_PAGE}, not {limit}", option="limit")
        with self._database.read() as connection:
            return audit.page(connection, wanted, limit, cursor)

    def export(self, wanted: AuditFilter) -> Iterator[list[AuditRow]]:
        """Yield all rows that are wanted, the oldest first, some hundred at once: each from a look of its own."""
        after: tuple[float, int] | None = None
        while True:
            with self._database.read() as connection:
                rows, after = audit.read(connection, wanted, _AT_ONCE, after)
            if rows:
                yield rows
            if after is None:
                return


@contextmanager
def open_audit() -> Iterator[Audit]:
    """Return the audit log of the database that the settings name. Raise InvalidOption, ServiceError."""
    with closing(Database(url_of_settings(settings().cache_dir))) as database:
        yield Audit(database)
