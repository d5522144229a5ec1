"""Looking at uploads: as many at a time as the budget of memory has room for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from relaxc.service.artifact.entry import sha256_of
from relaxc.service.errors import RelaxcError
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database.rows import LOCAL_OWNER
from relaxc.service.jobs.objects import intake
from relaxc.service.jobs.objects.intake import Sent, memory_to_check
from tests.api.conftest import make_onnx
from tests.jobs.conftest import OpenBackend
from tests.waiting import PATIENCE_S, until

SENDERS = 6


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """One kind of database is enough for what none decides."""
    return f"sqlite:///{tmp_path / 'service.sqlite3'}"


def senders(backend: Backend, folder: Path) -> list[threading.Thread]:
    """Threads that each add a model of their own, whatever comes of it."""

    def add(number: int) -> None:
        path = folder / f"{number}" / "model.onnx"
        path.parent.mkdir()
        path.write_bytes(make_onnx(4, seed=number))
        try:
            backend.models.add(LOCAL_OWNER, Sent(path, {path.name: sha256_of(path)}), name="m")
        except RelaxcError:  # the server stops while it looks
            return

    threads = [threading.Thread(target=add, args=(number,)) for number in range(SENDERS)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("room", [SENDERS, 2])
def test_as_many_are_looked_at_as_there_is_memory_for(
    open_backend: OpenBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(intake, "CHECK_ENTRY", "tests.jobs.entries:sleep")
    backend = open_backend()
    backend.budget.limit_bytes = room * memory_to_check(1000)
    threads = senders(backend, tmp_path)
    until(lambda: backend.pool.running == room and backend.budget.lent_bytes > 0)
    assert backend.budget.lent_bytes <= backend.budget.limit_bytes
    backend.budget.limit_bytes *= SENDERS
    backend.pool.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert backend.budget.lent_bytes == 0
