"""What must hold after each round, looked at from outside: in the database, in the folders, among the processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import psutil
import sqlalchemy as sa

from relaxc.service.artifact.entry import sha256_of
from relaxc.service.artifact.store import Store
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.tables import instances, job_events, jobs, model_contents, model_files
from tests.drills.clients import Accepted
from tests.drills.world import Clock, Server, below, until
from tests.processes import name_of

__all__ = ["Truth"]

_GONE_S = 240.0
_LONG_AGO_S = 3 * 24 * 3600.0
_FORWARD = {("queued", "running"), ("running", "queued"), *(("running", end) for end in ("succeeded", "failed"))}


class Truth:
    """Looks at what servers of one database and folder have done. Each call returns what is wrong."""

    def __init__(self, servers: Sequence[Server], clock: Clock) -> None:
        self._servers = servers
        self._server = servers[0]
        self._clock = clock
        self._database = Database(self._server.database_url)
        self._store = Store(self._server.cache, 1 << 40)

    def close(self) -> None:
        """Closes the database."""
        self._database.close()

    def of_jobs(self, accepted: list[Accepted]) -> Iterator[str]:
        """Every accepted job is there, at its end, got there forward, and there is no other."""
        with self._database.read() as connection:
            rows = {row.id: row for row in connection.execute(sa.select(jobs))}
            told = connection.execute(sa.select(job_events).order_by(job_events.c.job, job_events.c.seq)).all()
            missing = list(connection.scalars(sa.select(jobs.c.id).where(jobs.c.state.in_(["queued", "running"]))))
        yield from (f"job {id} has not ended" for id in missing)
        stories: dict[str, list[sa.Row[tuple[object, ...]]]] = {id: [] for id in rows}
        for row in told:
            stories[row.job].append(row)
        for job in accepted:
            if job.id not in rows:
                yield f"job {job.id} was accepted, and is lost"
            elif job.done is not None and job.done.state != rows[job.id].state:
                yield f"job {job.id} was {job.done.state}, and is now {rows[job.id].state}"
            else:
                yield from _story(job.id, rows[job.id].state, stories[job.id])
        yield from (f"job {id} was submitted twice" for id in rows.keys() - {job.id for job in accepted})

    def of_bytes(self, accepted: list[Accepted]) -> Iterator[str]:
        """Every byte of artifacts and models has the digest that it is kept under."""
        for digest in {job.done.artifact for job in accepted if job.done is not None and job.done.artifact}:
            self._store.verify(digest)
        with self._database.read() as connection:
            rows = connection.execute(sa.select(model_files, model_contents.c.folder).join(model_contents)).all()
        for row in rows:
            path = self._server.cache / "blobs" / "models" / row.folder / row.name
            if not path.is_file() or sha256_of(path) != row.sha256:
                yield f"model {row.digest} lacks {row.name}"

    def of_processes(self) -> Iterator[str]:
        """Nobody lives but the servers and their zygotes."""
        if not until(self._clock, _GONE_S, lambda: not self._busy()):
            for process in self._busy():
                yield f"process {process.pid} lives: {process.name()} {process.cmdline()[:4]}"

    def _busy(self) -> list[psutil.Process]:
        return below(apart_from={pid for server in self._servers for pid in server.at_rest()})

    def of_files(self) -> Iterator[str]:
        """After the sweep, when all leftovers are old, there is nothing but what the database and the store name."""
        cache = self._server.cache
        _age(cache / "staging", cache / "locks", cache / "blobs", cache / "jobs")
        with closing(Backend(cache, database_url=self._server.database_url)) as beside:
            beside.sweep()
            mine = beside.workspace.path
            yield from self._left(cache, mine)
        yield from (f"{path} is left" for path in sorted(self._server.temporary.rglob("*")))

    def _left(self, cache: Path, mine: Path) -> Iterator[str]:
        with self._database.read() as connection:
            known = set(connection.scalars(sa.select(jobs.c.id)))
            known |= set(connection.scalars(sa.select(model_contents.c.folder)))
            spaces = set(connection.scalars(sa.select(instances.c.workspace)))
        leftovers = [
            *cache.glob("staging/*"),
            *cache.glob("locks/*"),
            *cache.glob("blobs/.staging/*"),
            *cache.glob("blobs/uploads/*/*"),
        ]
        leftovers += [path for path in cache.glob("jobs/*") if path.name not in spaces and path != mine]
        leftovers += [path for path in cache.glob("jobs/*/*") if path.name != "lock"]
        leftovers += [path for path in cache.glob("blobs/[mj]*/*") if path.name not in known]
        leftovers += list(cache.glob(".*"))
        yield from (f"{path.relative_to(cache)} is left" for path in leftovers)

    def of_rest(self) -> Iterator[str]:
        """After a stop in order nothing is left: no process, no folder, no server's row."""
        yield from (f"process {process.pid} lives: {name_of(process)}" for process in below())
        with self._database.read() as connection:
            yield from (f"server {id} is still registered" for id in connection.scalars(sa.select(instances.c.id)))
        yield from (f"{path} is left" for path in (self._server.cache / "jobs").iterdir())


def _story(id: str, end: str, rows: list[sa.Row[tuple[object, ...]]]) -> Iterator[str]:
    if [row.seq for row in rows] != list(range(1, len(rows) + 1)):
        yield f"the events of job {id} are numbered {[row.seq for row in rows]}"
    events = [row.data for row in rows]
    states = [event["state"] for event in events if event.get("event") == "state"]
    again = [event for event in events if event.get("event") == "state" and event["state"] == "queued"]
    if not states or states[-1] != end or events[-1].get("state") != end:
        yield f"job {id} is {end}, and its events end with {events[-1:]}"
    if any(step not in _FORWARD for step in pairwise(states)):
        yield f"job {id} went through {states}"
    if any("reason" not in event for event in again):
        yield f"job {id} was queued again without a reason"


def _age(*roots: Path) -> None:
    """Makes every leftover old enough for a sweep; what is named in the database stays whatever its age."""
    old = time.time() - _LONG_AGO_S
    for root in roots:
        for path in [root, *root.rglob("*")]:
            if path.name != "lock":
                os.utime(path, (old, old), follow_symlinks=False)
