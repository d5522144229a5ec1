"""The crash drill: `python -m tests.drills.crash --rounds 50 --database sqlite|postgresql --seed N [--folder DIR]`.

In each round clients upload, compile, tune, bench and download, while processes of the service, or the whole of
PostgreSQL, are killed with SIGKILL at random moments; then what must hold is looked at. Two servers share the folder
and the database. A line a round; last a summary as JSON. Exit code 1 for what is wrong. The seed decides what is asked
and who is killed after how long; the machine decides what that hits.

With `--journal FILE` the rounds are done in legs of 25 with a fresh folder and database each, whose summaries are lines
of the file: what is there already is not done again, so that a drill of hours can be cut off and gone on with.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from relaxc.service.process.limits import become_subreaper
from tests.drills.clients import SCRIPTS, Accepted, Account, Visitor, stuck
from tests.drills.invariants import Truth
from tests.drills.killer import Deaths, kill_one
from tests.drills.world import Clock, Server
from tests.postgres import Postgres, PostgresMissing

__all__ = ["Drill", "main"]

_KILLS = (1, 1, 2, 3)
_SERVERS = 2
_LEG = 25


class Drill:
    """Rounds over the folder and the database of two servers. `postgres` is killed too, where there is one."""

    def __init__(self, folder: Path, postgres: Postgres | None, seed: int, clock: Clock) -> None:
        self._folder, self._clock, self._rng = folder, clock, random.Random(seed)
        self._postgres = postgres
        self.deaths, self.totals = Deaths(), Counter[str]()
        self._accepted: list[Accepted] = []
        for name in ("tmp", "client"):
            (folder / name).mkdir()
        url = f"sqlite:///{folder / 'service.sqlite3'}" if postgres is None else postgres.url
        logs = (folder / f"server-{number}.log" for number in range(_SERVERS))
        self.servers = [Server(folder / "cache", url, folder / "tmp", log=log) for log in logs]
        self._truth = Truth(self.servers, clock)

    def round(self) -> list[str]:
        """One round; what was wrong in it."""
        account, killed = Account(), Counter[str]()
        visitors = [
            Visitor(name, server.url, script, account, self._folder / "client", random.Random(self._rng.random()))
            for (name, script), server in zip(SCRIPTS.items(), itertools.cycle(self.servers))
        ]
        for _ in range(self._rng.choice(_KILLS)):
            killed[kill_one(self.servers, self._postgres, account, self.deaths, self._rng, self._clock)] += 1
        late = stuck(visitors, account, self._clock)
        self._accepted += account.accepted
        wrong = [*late, *account.wrong, *_unexplained(account, killed), *self._holds(account)]
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
        """Stops the servers in order; what they left that they should not have."""
        for server in self.servers:
            server.stop()
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


def run(rounds: int, database: str, seed: int, folder: Path) -> dict[str, Any]:
    """The drill; its summary."""
    wrong: list[str] = []
    begun = time.monotonic()
    with ExitStack() as stack:
        become_subreaper()
        postgres = stack.enter_context(closing(Postgres())) if database == "postgresql" else None
        if postgres is not None:
            postgres.start()
        clock = stack.enter_context(closing(Clock()))
        drill = Drill(folder, postgres, seed, clock)
        for server in drill.servers:
            stack.callback(server.kill)
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
        "server starts": sum(server.starts for server in drill.servers),
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
    parser.add_argument("--journal", type=Path, help="go on in legs, the summaries of which are its lines")
    asked = parser.parse_args()
    try:
        if asked.journal is not None:
            return _in_legs(asked.rounds, asked.database, asked.seed, asked.journal)
        with tempfile.TemporaryDirectory(prefix="relaxc-drill-") as temporary:
            folder = asked.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            summary = run(asked.rounds, asked.database, asked.seed, folder)
    except PostgresMissing as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(summary, indent=2))
    return 1 if summary["wrong"] else 0


def _in_legs(rounds: int, database: str, seed: int, journal: Path) -> int:
    """Do the legs that the journal lacks, in one process each; the folder of one in which something is wrong stays."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.touch()
    done = [json.loads(line) for line in journal.read_text().splitlines()]
    wrong = 0
    for leg in range(-(-rounds // _LEG)):
        mine = [one for one in done if (one["database"], one["seed"]) == (database, seed + leg)]
        if not mine:
            folder = Path(tempfile.mkdtemp(prefix="relaxc-drill-"))
            words = [f"--rounds={_LEG}", f"--database={database}", f"--seed={seed + leg}", f"--folder={folder}"]
            command = [sys.executable, "-m", "tests.drills.crash", *words]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                said = ""
                for line in process.stdout:
                    print(line, end="", flush=True)
                    said += line
            if process.returncode not in (0, 1):
                return process.returncode
            mine = [json.loads("{" + said.partition("\n{\n")[2])]
            with journal.open("a") as file:
                file.write(json.dumps(mine[0]) + "\n")
            if process.returncode == 0:
                shutil.rmtree(folder, ignore_errors=True)
        wrong += sum(bool(one["wrong"]) for one in mine)
    print(f"{database}: {rounds} rounds, {wrong} legs with something wrong ({journal})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
