"""Both databases, and backends over them whose children do what `tests.jobs.entries` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.process.limits import Limits
from tests.jobs.light_worker import BY_SEED, light_zygote
from tests.jobs.stepped import OpenStepped, SteppedBackend
from tests.jobs.zygotes import Lender
from tests.postgres import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]

LIMITS = Limits(timeout_s=120.0, memory_bytes=2 << 30, file_bytes=1 << 30)
ENTRIES = {
    JobKind.TUNE: "tests.jobs.durable_entries:tune",
    JobKind.BENCH: "tests.jobs.durable_entries:report",
    JobKind.VERIFY: "tests.jobs.durable_entries:report",
}

OpenBackend = Callable[..., Backend]


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'service.sqlite3'}"
    url: str = request.getfixturevalue("postgres")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An empty database with all tables."""
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def lender() -> Iterator[Lender]:
    """Workers for the backends of all tests."""
    lender = Lender()
    yield lender
    lender.close()


@pytest.fixture
def borrowed(lender: Lender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends borrow the session's workers, which are light."""
    monkeypatch.setattr("relaxc.service.jobs.backend.Pool", lender.pool)
    monkeypatch.setattr("relaxc.service.process.flavour_zygote.Zygote", light_zygote)


@pytest.fixture
def open_backend(database_url: str, tmp_path: Path, borrowed: None) -> Iterator[OpenBackend]:
    """Backends over one database, by default in one cache folder; all closed at the end."""
    opened: list[Backend] = []

    def make(cache: str = "cache", **options: object) -> Backend:
        given = {"database_url": database_url, "limits": LIMITS, "entry": BY_SEED, "entries": ENTRIES, **options}
        opened.append(Backend(tmp_path / cache, **given))  # type: ignore[arg-type]  # as the test says
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


@pytest.fixture
def servers(
    database_url: str, tmp_path: Path, borrowed: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenStepped]:
    """Servers over one database and one folder of blobs, which do nothing by themselves."""
    monkeypatch.setattr("relaxc.service.jobs.queue.scheduler.Scheduler.start", lambda scheduler: None)
    monkeypatch.setattr("relaxc.service.jobs.upkeep.Periodic", lambda *_: None)
    opened: list[SteppedBackend] = []

    def make(name: str) -> SteppedBackend:
        blobs = str(tmp_path / "blobs")
        opened.append(SteppedBackend(tmp_path / name, database_url=database_url, blobs_url=blobs, workers=2))
        opened[-1]._periodic = []
        return opened[-1]

    yield make
    for each in opened:
        each.close()
