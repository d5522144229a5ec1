"""Today's service on what relaxc of 459bce9 has kept: nothing is lost, and the way back is a backup."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.records.files import parse
from tests.api.conftest import COMPILE, RunningServer
from tests.api.jobs import ended
from tests.api.kept import LAYOUTS, Place, Places, programs
from tests.former import ARRIVED, FIRST, Former, lost, made_by, seen, source_of
from tests.former import COMPILE as FORMER_COMPILE
from tests.waiting import PATIENCE_S, gone, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]

DONE = ("compiled", "external", "tuned", "bench", "verify", "theirs")
"""What had succeeded."""


@dataclass(frozen=True)
class Left:
    """What the former server left when it was killed, and a backup from while it ran."""

    places: Places
    source: Path
    place: Place
    backup: Path
    former: Former
    told: dict[str, Any]


@pytest.fixture(scope="module", params=LAYOUTS)
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    """Its data in each layout, once for all tests, which restore the backup; `kill -9` ended it."""
    programs(request.param)
    folder = tmp_path_factory.mktemp("former")
    source = source_of(FIRST, folder / "source")
    with Places.opened(request.param, folder) as places:
        place, backup = places.place(), folder / "backup"
        server = place.serve(FORMER_COMPILE, root=source, webhook_private=True, workers=2)
        try:
            former = made_by(server)
            told = seen(server, former, DONE)
            place.back_up(backup)
        finally:
            below = server.processes()
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(PATIENCE_S)
            server.close()
            assert gone(below)
        yield Left(places, source, place, backup, former, told)


@contextmanager
def serving(place: Place, secret: str, entry: str = COMPILE, **settings: Any) -> Iterator[RunningServer]:
    """A server on it, asked with this key."""
    server = place.serve(entry, webhook_private=True, **settings)
    server.client.headers["Authorization"] = f"Bearer {secret}"
    try:
        yield server
    finally:
        server.stop()


def restored(left: Left) -> Place:
    """The backup in an empty place."""
    place = left.places.place()
    place.restore(left.backup)
    return place


def test_a_backup_of_the_former_version_loses_nothing_in_this_one(left: Left) -> None:
    with serving(restored(left), left.former.admin) as server:
        check(left, server)


def test_the_former_version_takes_its_backup_back_and_no_tables_of_this_one(left: Left) -> None:
    place = restored(left)
    with serving(place, left.former.admin, FORMER_COMPILE, root=left.source) as server:
        assert list(lost(left.told, seen(server, left.former, DONE))) == []
    with serving(place, left.former.admin) as server:
        assert server.client.get("/v1/jobs").is_success
    assert "Can't locate revision" in refused(place, left.source)  # what it says of tables of a later version


def test_what_it_left_when_it_was_killed_is_taken_over(left: Left) -> None:
    with serving(left.place, left.former.admin) as server:
        check(left, server)


def refused(place: Place, source: Path) -> str:
    """What a server of this source says that does not start."""
    settings = {f"RELAXC_{name.upper()}": str(value) for name, value in place.settings.items()}
    done = subprocess.run(
        [sys.executable, "-m", "service", "serve", "--port", "0"],
        cwd=source,
        env={**os.environ, **settings, "RELAXC_CACHE_DIR": str(place.cache), "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


def check(left: Left, server: RunningServer) -> None:
    """All that was told is told as before; what had not ended goes on; the keys are the same ones."""
    former, client = left.former, server.client
    assert list(lost(renamed(left.told, former, server), seen(server, former, DONE))) == []

    for name, state in (("refused", "failed"), ("cancelled", "cancelled")):
        assert client.get(f"/v1/jobs/{former.jobs[name]}").json()["state"] == state
    assert client.get("/v1/jobs", headers={"Authorization": f"Bearer {former.revoked}"}).status_code == 401
    theirs = client.get("/v1/jobs", headers={"Authorization": f"Bearer {former.other}"}).json()["jobs"]
    assert [job["id"] for job in theirs] == [former.jobs["theirs"]]
    actions = [row["action"] for row in client.get("/v1/audit?limit=500").json()["rows"]]
    assert actions.count("POST /v1/keys") == 3

    if left.place.layout == LAYOUTS[0]:  # an upload in parts is of one server's folder
        digest = hashlib.sha256(former.unfinished).hexdigest()
        assert client.head(f"/v1/uploads/{digest}").headers["upload-offset"] == str(ARRIVED)
        rest, total = former.unfinished[ARRIVED:], len(former.unfinished)
        span = {"Content-Range": f"bytes {ARRIVED}-{total - 1}/{total}"}
        assert client.put(f"/v1/uploads/{digest}", content=rest, headers=span).status_code == 201

    repeated = client.post("/v1/jobs", json=former.again, headers={"Idempotency-Key": "again"})
    assert repeated.json()["id"] == former.jobs["compiled"]

    running = former.jobs["running"]
    until(lambda: client.get(f"/v1/jobs/{running}").json()["attempts"] >= 1)
    assert client.delete(f"/v1/jobs/{running}").status_code == 202
    assert ended(server, running)["state"] == "cancelled"
    assert ended(server, former.jobs["waiting"])["state"] == "succeeded"

    compiled, tuned, external = (
        client.get(f"/v1/jobs/{former.jobs[n]}").json() for n in ("compiled", "tuned", "external")
    )
    assert len(parse(client.get(tuned["links"]["records"]).content, "records")) >= 1
    for body in (
        {"kind": "verify", "artifact": compiled["artifact"], "model": compiled["model"]},  # today's runtime loads it
        {"kind": "verify", "artifact": external["artifact"], "model": former.external},
        {"kind": "compile", "model": compiled["model"], "records": tuned["records"]},
        {"kind": "compile", "model": former.external},  # by the name that it had
    ):
        answer = client.post("/v1/jobs", json=body)
        assert answer.is_success, answer.text
        assert ended(server, answer.json()["id"])["state"] == "succeeded"


def renamed(told: dict[str, Any], former: Former, server: RunningServer) -> dict[str, Any]:
    """What was told, with the digest that a model with external data has since 0003; artifacts say what they said."""
    now = server.client.get(f"/v1/models/{former.external}").json()["digest"]
    assert now != former.external

    def of(value: Any) -> Any:
        match value:
            case str():
                return value.replace(former.external, now)
            case dict():
                return {of(key): of(each) for key, each in value.items()}
            case list():
                return [of(each) for each in value]
        return value

    return {of(path): said if path.startswith("/v1/artifacts/") else of(said) for path, said in told.items()}
