"""The crash drill: `python -m tests.drills.crash --rounds 50 --database sqlite|postgresql --seed N [--folder DIR]`.

In each round clients upload, compile, tune, bench and download, while processes of the service are killed with SIGKILL
at random moments; then what must hold is looked at. A line a round; last a summary as JSON. Exit code 1 for what is
wrong. The seed decides what is asked and who is killed after how long; the machine decides what that hits.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from service.process.limits import become_subreaper
from tests.drills.clients import SCRIPTS, Accepted, Account, Visitor
from tests.drills.invariants import Truth
from tests.drills.killer import Deaths, kill_one
from tests.drills.world import Clock, Server
from tests.postgres import PostgresMissing, running_postgres

__all__ = ["Drill", "main"]

_STUCK_S = 240.0
_KILLS = (1, 1, 2, 3)


class Drill:
    """Rounds over one server's folder and database."""

    def __init__(self, folder: Path, database_url: str, seed: int, clock: Clock) -> None:
        self._folder, self._clock, self._rng = folder, clock, random.Random(seed)
        self.deaths, self.totals = Deaths(), Counter[str]()
        self._accepted: list[Accepted] = []
        for name in ("tmp", "client"):
            (folder / name).mkdir()
        self.server = Server(folder / "cache", database_url, folder / "tmp")
        self._truth = Truth(self.server, clock)

    def round(self) -> list[str]:
        """One round; what was wrong in it."""
        account, killed = Account(), Counter[str]()
        visitors = [
            Visitor(name, self.server.url, script, account, self._folder / "client", random.Random(self._rng.random()))
            for name, script in SCRIPTS.items()
        ]
        for _ in range(self._rng.choice(_KILLS)):
            killed[kill_one(self.server, account, self.deaths, self._rng, self._clock)] += 1
        deadline = self._clock.now_s + _STUCK_S
        for visitor in visitors:
            while visitor.thread.is_alive() and self._clock.now_s < deadline:
                visitor.thread.join(0.1)
        stuck = [f"{name} is stuck in {phase}" for name, phase in sorted(account.phases.items())]
        self._accepted += account.accepted
        wrong = [*stuck, *account.wrong, *_unexplained(account, killed), *self._holds(account)]
        self._count(account, killed)
        return wrong

    def _holds(self, account: Account) -> Iterator[str]:
        yield from self._truth.of_processes()
        yield from self._truth.of_jobs(self._accepted)
        yield from self._truth.of_bytes(account.accepted)
        yield from self._truth.of_files()

    def _count(self, account: Account, killed: Counter[str]) -> None:
        self.last = f"killed {' '.join(killed.elements()):<24} jobs {len(account.accepted):2}"
        ends = Counter(f"{job.done.state}" for job in account.accepted if job.done is not None)
        self.last += f"  {dict(ends)} surprises {account.surprises}"
        self.totals += Counter(jobs=len(account.accepted), uploads=account.uploads, downloads=account.downloads)
        self.totals += Counter({f"jobs {state}": count for state, count in ends.items()})
        self.totals += Counter({f"surprise {what.partition(': ')[2]}": 1 for what in account.surprises})

    def close(self) -> list[str]:
        """Stops the server in order; what it left that it should not have."""
        self.server.stop()
        with closing(self._truth):
            return list(self._truth.of_rest())


def _unexplained(account: Account, killed: Counter[str]) -> Iterator[str]:
    """Ends that no kill explains: a child that was killed fails one job, two dead servers fail what both ran."""
    ended = [job for job in account.accepted if job.done is not None]
    for job in ended:
        assert job.done is not None
        code = job.done.error.code if job.done.error is not None else ""
        if job.done.state == job.wants and code == job.code:
            continue
        if code != "server-died" or killed["server"] < 2:
            account.surprises.append(f"{job.id}: {code}")
    explained = killed["relaxc-guard"] + killed["relaxc-job"]
    if len(account.surprises) > explained:
        yield f"{len(account.surprises)} surprises, {explained} children killed: {account.surprises}"


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'service.sqlite3'}"
    else:
        with running_postgres() as url:
            yield url


def run(rounds: int, database: str, seed: int, folder: Path) -> dict[str, Any]:
    """The drill; its summary."""
    wrong: list[str] = []
    begun = time.monotonic()
    with ExitStack() as stack:
        url = stack.enter_context(_database(database, folder))
        become_subreaper()  # after PostgreSQL, which is none of the service's processes
        clock = stack.enter_context(closing(Clock()))
        drill = Drill(folder, url, seed, clock)
        stack.callback(drill.server.kill)
        for number in range(1, rounds + 1):
            found, before = drill.round(), time.monotonic()
            wrong += [f"round {number}: {what}" for what in found]
            print(f"{number:3} {before - begun:6.0f} s  {drill.last}  {'; '.join(found) or 'ok'}", flush=True)
        wrong += [f"at the end: {what}" for what in drill.close()]
    return {
        "database": database,
        "seed": seed,
        "rounds": rounds,
        "killed": dict(drill.deaths.kinds),
        "while clients were at": dict(drill.deaths.amid),
        "server starts": drill.server.starts,
        **dict(drill.totals),
        "wrong": wrong,
    }


def main() -> int:
    """Runs it; 0 where all held, 1 where not, 2 where PostgreSQL is not installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="an empty folder to keep; a temporary one if not given")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relaxc-drill-")))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            summary = run(arguments.rounds, arguments.database, arguments.seed, folder)
        except PostgresMissing as error:
            print(error, file=sys.stderr)
            return 2
    print(json.dumps(summary, indent=2))
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
