"""Who dies, and when."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

from tests.drills.clients import Account
from tests.drills.world import DATABASE, Clock, Server, below, until
from tests.postgres import Postgres

__all__ = ["Deaths", "kill_child", "kill_one"]

_WEIGHTS = {"server": 10, "relaxc-zygote": 3, "relaxc-guard": 4, "relaxc-job": 4}
_DATABASE_WEIGHT = 4
_LATEST_S = 2.5
_SHORT_PHASES = ("upload", "submit", "download")
"""What random moments rarely hit: half of the servers' deaths are aimed at one of these."""

_AMID_S = 0.15
_PATIENCE_S = 10.0


@dataclass
class Deaths:
    """What was killed, and what the clients were at then."""

    kinds: Counter[str] = field(default_factory=Counter)
    amid: Counter[str] = field(default_factory=Counter)


def kill_one(
    servers: Sequence[Server],
    database: Postgres | None,
    account: Account,
    deaths: Deaths,
    rng: random.Random,
    clock: Clock,
) -> str:
    """Waits for a random moment, kills somebody, and starts again what does not start by itself; says who it was."""
    weights = _WEIGHTS if database is None else _WEIGHTS | {DATABASE: _DATABASE_WEIGHT}
    (kind,) = rng.choices(list(weights), list(weights.values()))
    server = rng.choice(servers)
    time.sleep(rng.uniform(0.0, _LATEST_S))
    if kind == DATABASE:
        assert database is not None
        deaths.amid += Counter(list(account.phases.values()))
        deaths.kinds[kind] += 1
        database.crash()
        time.sleep(rng.choice((0.0, 0.5, 3.0)))
        database.start()
        return kind
    if kind == "server" and rng.random() < 0.5:
        _await(rng.choice(_SHORT_PHASES), rng, clock, account)
    if kind != "server" and not kill_child(kind, rng, clock, account):
        kind = "server"
    amid = Counter(list(account.phases.values()))
    if kind == "server":
        server.kill()
        if rng.random() < 0.2:  # what was left behind must end without anybody's help
            time.sleep(1.0)
        server.start()
    deaths.kinds[kind] += 1
    deaths.amid += amid
    return kind


def _await(phase: str, rng: random.Random, clock: Clock, account: Account) -> None:
    """Until a client is in the middle of it, if one comes there in time."""
    until(clock, _PATIENCE_S, lambda: phase in list(account.phases.values()) or not account.phases, pause_s=0.002)
    time.sleep(rng.uniform(0.0, _AMID_S))


def kill_child(name: str, rng: random.Random, clock: Clock, account: Account) -> bool:
    """Kills a process of this name once there is one; False where the clients were done before."""
    found: list[psutil.Process] = []

    def one_is_there() -> bool:
        found[:] = [process for process in below() if _name(process) == name]
        return bool(found) or not account.phases

    until(clock, _PATIENCE_S, one_is_there)
    if not found:
        return False
    time.sleep(rng.uniform(0.0, 0.5))
    with contextlib.suppress(psutil.NoSuchProcess):
        rng.choice(found).kill()
        return True
    return False


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""
