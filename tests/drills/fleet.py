"""The fleet drill: `python -m tests.drills.fleet --rounds 20 --seed N [--folder DIR]`.

Two servers that run no jobs, and three workers of different (simulated) kinds with a folder each, over PostgreSQL and
an S3 (moto's). In each round clients ask for eleven mixed jobs, while one process is killed with SIGKILL: a server, a
worker, a job's, its guard, a zygote, or PostgreSQL. Then what must hold is looked at: nothing is lost, nothing done
twice, nothing ran on the wrong kind of machine. A line a round; last a summary as JSON. Exit code 1 for what is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.tables import instances, job_events, job_logs, jobs
from relaxc.service.process.limits import become_subreaper
from tests.drills.clients import Accepted, Account, Visitor, stuck
from tests.drills.fleet_clients import MAY_RUN_ON, SCRIPTS, UNVERIFIED, Wishes
from tests.drills.invariants import Truth
from tests.drills.killer import kill_child
from tests.drills.world import DATABASE, Clock, Server
from tests.postgres import Postgres, PostgresMissing
from tests.s3 import BUCKET, CREDENTIALS, running_s3

__all__ = ["Fleet", "Worker", "main"]

_KINDS = ("zen", "haswell", "hopper")
_LATEST_S = 6.0
_WEIGHTS = {"server": 4, "worker": 8, "relaxc-zygote": 2, "relaxc-guard": 2, "relaxc-job": 2, DATABASE: 2}


class Worker(Server):
    """A worker of one kind; `ids` are those under which it has been registered."""

    module = "tests.drills.work"

    def __init__(self, kind: str, *arguments: Any, **settings: Any) -> None:
        self.kind = kind
        self.ids: list[str] = []
        super().__init__(*arguments, **settings)

    def _words(self) -> list[str]:
        return [self.kind]

    def _hear(self, line: str) -> None:
        assert line.startswith("working as "), f"the worker does not start: {line!r}"
        self.ids.append(line.split()[-1])


Place = Callable[[str], tuple[Path, str, Path]]
"""Makes the folders of a process by its name: its cache, the database's URL, its temporary folder."""


class _Others:
    """Processes that are none of the service's."""

    def __init__(self) -> None:
        self._pids = {process.pid for process in psutil.Process().children(recursive=True)}

    def at_rest(self) -> set[int]:
        return self._pids


class Fleet:
    """Rounds over two servers and a worker of each kind."""

    def __init__(self, folder: Path, postgres: Postgres, s3: str, seed: int, clock: Clock) -> None:
        self._folder, self._clock, self._rng, self._postgres = folder, clock, random.Random(seed), postgres
        others = _Others()
        self.deaths, self.totals = Counter[str](), Counter[str]()
        self.wishes, self._accepted = Wishes(), list[Accepted]()
        (folder / "client").mkdir()
        common = {
            "BLOBS_URL": f"s3://{BUCKET}/drill",
            "S3_ENDPOINT_URL": s3,
            "SERVER_LEASE_S": 4,
            "SANDBOX": "auto",
            "TUNE_WORKERS": 1,
        }

        def place(name: str) -> tuple[Path, str, Path]:
            (folder / name / "tmp").mkdir(parents=True)
            return folder / name / "cache", postgres.url, folder / name / "tmp"

        self.servers = [
            Server(*place(f"server{i}"), log=folder / f"server{i}.log", **common | {"WORKERS": 0}) for i in range(2)
        ]
        self.workers = self._open_workers(place, common)
        self.processes = [*self.servers, *self.workers]
        self._truth = Truth([*self.processes, others], clock)  # type: ignore[list-item]  # for what is at rest alone
        self._database = Database(postgres.url)

    def _open_workers(self, place: Place, common: dict[str, Any]) -> list[Worker]:
        return [Worker(kind, *place(kind), log=self._folder / f"{kind}.log", **common) for kind in _KINDS]

    def kinds(self) -> dict[str, str]:
        """The kind of machine of each worker that there has been, by its id."""
        return {id: worker.kind for worker in self.workers for id in worker.ids}

    def _of_processes(self) -> Iterator[str]:
        yield from self._truth.of_processes()

    def round(self) -> list[str]:
        """One round; what was wrong in it."""
        account = Account()
        visitors = [
            Visitor(
                *(name, server.url, make(self.wishes), account),
                *(self._folder / "client", random.Random(self._rng.random())),
            )
            for (name, make), server in zip(SCRIPTS.items(), itertools.cycle(self.servers))
        ]
        killed = self._kill(account)
        late = stuck(visitors, account, self._clock)
        self._accepted += account.accepted
        surprises = [job for job in account.accepted if job.done is not None and job.done.state != job.wants]
        told = [f"{job.id}: {job.done.error.code if job.done and job.done.error else ''}" for job in surprises]
        may_fail = killed in ("relaxc-guard", "relaxc-job")
        unexplained = told if len(told) + len(account.surprises) > may_fail else []
        self.last = f"killed {killed:<14} jobs {len(account.accepted):2} surprises {[*account.surprises, *told]}"
        self.totals += Counter(jobs=len(account.accepted), uploads=account.uploads, downloads=account.downloads)
        self.totals += Counter({f"surprise {each.partition(': ')[2]}": 1 for each in told})
        return [*late, *account.wrong, *unexplained, *self._of_processes(), *self._of_jobs()]

    def _of_jobs(self) -> Iterator[str]:
        yield from self._truth.of_jobs(self._accepted)
        yield from self._of_places()

    def _of_places(self) -> Iterator[str]:
        """Every claim was a worker's of the right kind, and each is told of once."""
        kinds = self.kinds()
        claims: dict[str, list[str]] = {}
        with self._database.read() as connection:
            rows = {row.id: row for row in connection.execute(sa.select(jobs))}
            for row in connection.execute(sa.select(job_events).order_by(job_events.c.job, job_events.c.seq)):
                if row.data.get("event") == "state" and row.data["state"] == "running":
                    claims.setdefault(row.job, []).append(row.data["worker"])
            left = connection.scalar(sa.select(sa.func.count()).select_from(job_logs))
        for id, row in rows.items():
            kind, target = self.wishes[id]
            allowed = MAY_RUN_ON[kind, target]
            if kind == "compile" and (row.needs is None or row.needs["runs"] is None):
                allowed = UNVERIFIED.get(target, allowed)
            ran_on = [kinds.get(each, f"nobody known ({each})") for each in claims.get(id, ())]
            if not set(ran_on) <= allowed:
                yield f"{kind} {id} for {target} ran on {ran_on}"
            if row.epoch != len(ran_on):
                yield f"{kind} {id} was begun {row.epoch} times, and tells of {len(ran_on)}"
            if kind == "compile" and target == "auto" and row.state == "succeeded":
                yield from self._of_auto(row, ran_on[-1])
        if left:
            yield f"{left} pieces of logs are left"

    def _of_auto(self, row: Any, ran_on: str) -> Iterator[str]:
        meant = {"zen": "znver4"}.get(ran_on, "haswell")
        if row.target.get("name") != meant:
            yield f"auto of {row.id} meant {row.target.get('name')} on {ran_on}"

    def _kill(self, account: Account) -> str:
        """Kill somebody at a random moment, and start again what does not start by itself; who it was."""
        (kind,) = self._rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        time.sleep(self._rng.uniform(0.3, _LATEST_S))
        if kind == DATABASE:
            self._postgres.crash()
            time.sleep(self._rng.choice((0.0, 0.5, 3.0)))
            self._postgres.start()
        elif kind.startswith("relaxc-") and not kill_child(kind, self._rng, self._clock, account):
            kind = "worker"
        if kind in ("server", "worker"):
            victim = self._rng.choice(self.servers if kind == "server" else self.workers)
            victim.kill()
            if self._rng.random() < 0.4:  # for longer than its lease: others see that it is dead
                time.sleep(5.0)
            victim.start()
        self.deaths[kind] += 1
        return kind

    def close(self) -> list[str]:
        """Stops all in order; what they left that they should not have."""
        for process in self.processes:
            process.stop()
        with closing(self._truth), closing(self._database):
            with self._database.read() as connection:
                left = list(connection.scalars(sa.select(instances.c.id)))
            return [f"{id} is still registered" for id in left]

    def let_go(self) -> None:
        """Ends what else it has begun."""

    def where(self) -> dict[str, dict[str, int]]:
        """How many claims of each kind of job each kind of machine had."""
        kinds = self.kinds()
        found: dict[str, Counter[str]] = {kind: Counter() for kind in _KINDS}
        with self._database.read() as connection:
            for row in connection.execute(sa.select(job_events)):
                if row.data.get("event") == "state" and row.data["state"] == "running":
                    found[kinds[row.data["worker"]]][self.wishes[row.job][0]] += 1
        return {kind: dict(counts) for kind, counts in found.items()}


def run(rounds: int, seed: int, folder: Path, drilled: type[Fleet] = Fleet) -> dict[str, Any]:
    """The drill; its summary."""
    wrong: list[str] = []
    begun = time.monotonic()
    os.environ.update(CREDENTIALS)
    with ExitStack() as stack:
        become_subreaper()
        postgres = stack.enter_context(closing(Postgres()))
        postgres.start()
        s3 = stack.enter_context(running_s3(folder / "moto.log"))
        clock = stack.enter_context(closing(Clock()))
        fleet = drilled(folder, postgres, s3, seed, clock)
        stack.callback(fleet.let_go)
        for process in fleet.processes:
            stack.callback(process.kill)
        for number in range(1, rounds + 1):
            found, before = fleet.round(), time.monotonic()
            wrong += [f"round {number}: {what}" for what in found]
            print(f"{number:3} {before - begun:6.0f} s  {fleet.last}  {'; '.join(found) or 'ok'}", flush=True)
        where = fleet.where()
        wrong += [f"at the end: {what}" for what in fleet.close()]
    return {
        "seed": seed,
        "rounds": rounds,
        "killed": dict(fleet.deaths),
        "starts": {worker.kind: worker.starts for worker in fleet.workers},
        "claims": where,
        **dict(fleet.totals),
        "wrong": wrong,
    }


def main(drilled: type[Fleet] = Fleet) -> int:
    """Runs it; 0 where all held, 1 where not, 2 where PostgreSQL is not installed."""
    parser = argparse.ArgumentParser(description=sys.modules[drilled.__module__].__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="an empty folder to keep; a temporary one if not given")
    asked = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="relaxc-fleet-") as temporary:
            folder = asked.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            summary = run(asked.rounds, asked.seed, folder, drilled)
    except PostgresMissing as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(summary, indent=2))
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
