"""The database: SQLite in WAL mode or PostgreSQL, from one URL, migrated when it is opened."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, ServiceError
from relaxc.service.jobs.database.migrate import migrate

if TYPE_CHECKING:
    import psycopg

__all__ = ["Database", "is_no_answer", "now", "url_of_settings"]

_BUSY_MS = 30_000
"""How long SQLite waits for another writer; each of our transactions takes milliseconds."""

_INCREMENTAL = 2
_FREE_PAGES = 1000
_WAL_BYTES = 64 << 20

_POOL = 16
_POOL_WAIT_S = 10.0
"""How long a call waits for one of the pool's connections, when all hang with their database."""

_POSTGRES = {
    "application_name": "relaxc",
    "connect_timeout": "10",
    # A host that is gone is noticed in half a minute, by its silence or by what it does not acknowledge.
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
_POSTGRES_OPTIONS = "-c statement_timeout=30s -c lock_timeout=20s -c idle_in_transaction_session_timeout=60s"
"""Each of our statements takes milliseconds. What must take longer says so: `Database.take_time`."""

_FAILURES = (DBAPIError, sa.exc.TimeoutError)  # the second, of an empty pool, is none of the driver's
_LOCK_SPACE = 0x52584C43  # "RLXC": the first half of our advisory locks in PostgreSQL


class now(FunctionElement[float]):
    """The database's own clock, as Unix seconds: servers on several hosts agree on it."""

    type = sa.Double()
    inherit_cache = True


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: SQLCompiler, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now)
def _now(element: now, compiler: SQLCompiler, **_: Any) -> str:
    return "extract(epoch FROM clock_timestamp())::double precision"


class Database:
    """Connections to one database. Every method may be called from any thread, and by several servers at once."""

    def __init__(self, url: str | URL, connections: int | None = None) -> None:
        """Opens it, with so many connections at most, and brings its tables up to date. Raise InvalidOption for a URL
        that it cannot use, ServiceError when there is no answer."""
        self.engine = _engine(url, connections or 2 * _POOL)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        # Each SELECT of PostgreSQL's READ COMMITTED sees a moment of its own: a row, and then the files of no row.
        self._one_moment = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        try:
            migrate(self)
        except (SQLAlchemyError, OSError) as error:
            self.engine.dispose()
            raise unavailable(error) from error
        except ServiceError:
            self.engine.dispose()
            raise

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a transaction that writes: committed at the end, rolled back when the block raises.

        In SQLite it is the only one that writes (BEGIN IMMEDIATE). Raise ServiceError where the database fails.
        """
        try:
            with self.engine.connect() as connection:
                connection.info["write"] = True
                try:
                    with connection.begin():
                        yield connection
                finally:
                    connection.info.pop("write", None)
        except _FAILURES as error:
            if isinstance(error, sa.exc.IntegrityError):
                raise
            raise unavailable(error) from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a view of one moment that writes nothing, and waits for nobody in SQLite. Raise ServiceError too."""
        try:
            with self.engine.connect().execution_options(**self._one_moment) as connection, connection.begin():
                yield connection
        except _FAILURES as error:
            raise unavailable(error) from error

    @contextmanager
    def listening(self) -> Iterator[psycopg.Connection[Any]]:
        """Open a connection to PostgreSQL that is none of the pool's, for who listens. Raise psycopg.Error.

        What it sends need not outlive a crash: nobody waits for the disk.
        """
        import psycopg

        arguments, options = self.engine.dialect.create_connect_args(self.engine.url)
        settled = {**options, **_postgres_arguments(self.engine.url)}
        with psycopg.connect(*arguments, **settled, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            yield connection

    def lock(self, connection: Connection, name: int) -> None:
        """Until this transaction ends, only one holds `name`: SQLite's `begin` already sees to that."""
        if not self.is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_SPACE, name)))

    def take_time(self, connection: Connection) -> None:
        """Let this transaction's statements take as long as they need, and wait for locks as long."""
        if not self.is_sqlite:
            for limit in ("statement_timeout", "lock_timeout"):
                connection.execute(sa.select(sa.func.set_config(limit, "0", True)))

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folder of its file; none where another process has its files."""
        return (Path(str(self.engine.url.database)).parent,) if self.is_sqlite else ()

    def give_back(self, pages: int) -> bool:
        """Give at most so many free pages of an SQLite file back to the file system; return whether any was given.

        An eighth of the pages stays free for what is written next. Files that were made before 0006 keep their free
        pages, and use them again; PostgreSQL's autovacuum does either by itself.
        """
        if not self.is_sqlite:
            return False
        with self.begin() as connection:
            mode, total, free = (
                connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
                for name in ("auto_vacuum", "page_count", "freelist_count")
            )
            spare = free - max(_FREE_PAGES, total // 8)
            if mode != _INCREMENTAL or spare <= 0:
                return False
            for _ in range(min(spare, pages)):
                connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")  # sqlite3 makes one step of one without rows
        return True

    def sizes(self) -> dict[str, int]:
        """Return its size in bytes, and of an SQLite file how much of that is free. Raise ServiceError."""
        with self.read() as connection:
            if not self.is_sqlite:
                return {"all": connection.scalar(sa.select(sa.func.pg_database_size(sa.func.current_database()))) or 0}
            page, total, free = (
                connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
                for name in ("page_size", "page_count", "freelist_count")
            )
        return {"all": page * total, "free": page * free}

    def ping(self) -> str | None:
        """Why it cannot be used now, or None."""
        try:
            with self.read() as connection:
                connection.execute(sa.select(1))
        except ServiceError as error:
            return error.message
        return None

    def on_error(self, told: Callable[[], None]) -> None:
        """Call `told` whenever a statement fails, whatever becomes of it."""
        event.listen(self.engine, "handle_error", lambda context: told())

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def url_of_settings(root: Path) -> str:
    """Return the URL that the settings name, or that of a file in `root`."""
    return settings().database_url.get_secret_value() or f"sqlite:///{root / 'service.sqlite3'}"


def is_no_answer(error: BaseException) -> bool:
    """Return whether `begin` or `read` raised this because the database was gone, and not for what it was asked."""
    cause = error.__cause__
    return isinstance(error, ServiceError) and isinstance(
        cause, (OperationalError, InterfaceError, sa.exc.TimeoutError)
    )


def unavailable(error: Exception) -> ServiceError:
    """Return the database's failure without its statement, which may hold what a user sent."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(error, sa.exc.TimeoutError):
        cause = TimeoutError(f"all its connections are in use, and none came free in {_POOL_WAIT_S:g} s")
    first = str(cause).strip().splitlines() or [type(cause).__name__]
    return ServiceError(
        f"the database does not answer: {first[0]}",
        remedy="Try again later; who runs the server should check RELAXC_DATABASE_URL and the disk.",
    )


def _engine(url: str | URL, connections: int) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidOption("RELAXC_DATABASE_URL is no URL", option="database_url") from error
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(parsed)
    if parsed.get_backend_name() == "postgresql":
        return _postgres(parsed, connections)
    found = parsed.get_backend_name()
    raise InvalidOption(f"RELAXC_DATABASE_URL names {found!r}; there are sqlite and postgresql", option="database_url")


def _postgres(url: URL, connections: int) -> Engine:
    return sa.create_engine(
        url.set(drivername="postgresql+psycopg").difference_update_query(["prepare_threshold"]),
        pool_size=connections,
        max_overflow=0,
        pool_timeout=_POOL_WAIT_S,
        pool_pre_ping=True,
        connect_args={**_postgres_arguments(url), **_prepared(url)},
    )


def _prepared(url: URL) -> dict[str, int | None]:
    """What the URL says of prepared statements: `none` is for a pooler that lends connections for a transaction."""
    asked = "".join(_texts(url.query.get("prepare_threshold")))
    return {"prepare_threshold": int(asked) if asked.isdigit() else None} if asked else {}


def _postgres_arguments(url: URL) -> dict[str, str]:
    """What the URL itself says of timeouts holds over ours."""
    options = " ".join([_POSTGRES_OPTIONS, *_texts(url.query.get("options"))])
    return {name: value for name, value in _POSTGRES.items() if name not in url.query} | {"options": options}


def _texts(values: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (values,) if isinstance(values, str) else values or ()


def _sqlite(url: URL) -> Engine:
    if not url.database or url.database == ":memory:":
        raise InvalidOption("RELAXC_DATABASE_URL must name a file, as sqlite:////var/lib/relaxc/service.sqlite3")
    Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(url.database, os.O_CREAT | os.O_RDWR, 0o600))  # keys and logs; SQLite's other files get its mode
    engine = sa.create_engine(
        url,
        pool_size=_POOL,
        max_overflow=_POOL,
        pool_timeout=_POOL_WAIT_S,
        connect_args={"timeout": _BUSY_MS / 1000, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves: sqlite3 would say it too late
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        if not cursor.execute("PRAGMA page_count").fetchone()[0]:  # it is set for good before WAL makes the first page
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _set_wal(cursor)
        cursor.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        # FULL: an accepted job is on the disk before its 202 is sent, also when the power goes.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        # IMMEDIATE takes the writer's lock at once: a reader that became a writer would fail without waiting.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.info.get("write") else "BEGIN")

    return engine


def _set_wal(cursor: Any) -> None:
    """Switching to WAL needs the file alone, and SQLite does not wait for that as it waits for a writer."""
    import sqlite3

    deadline = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
