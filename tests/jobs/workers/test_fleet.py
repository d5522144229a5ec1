"""What the processes of one database are together."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from relaxc.service.errors import InvalidTarget
from relaxc.service.jobs.database import instances, tables
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.workers.fleet import Fleet, Role
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.jobs.workers.needs import Needs
from relaxc.service.lowering.target import resolve
from tests.jobs.workers.kinds import ARM, HASWELL, HOPPER, ZEN


def fleet_of(
    database: Database, *machines: Machine, slots: int = 1, tune_slots: int = 1, role: Role = Role.WORKER
) -> Fleet:
    with database.begin() as connection:
        for number, machine in enumerate(machines):
            about = {"role": role.value, "slots": slots, "tune_slots": tune_slots, "machine": machine.to_dict()}
            instances.register(connection, f"w{number}", f"p{number}", f"f{number}", **about)
    return Fleet(database)


def test_auto_is_what_all_workers_are(database: Database) -> None:
    fleet = fleet_of(database, ZEN, ZEN)
    assert fleet.means("auto", JobKind.COMPILE) == ZEN.target
    assert fleet.means("x86-64-v3", JobKind.COMPILE) == resolve("x86-64-v3")


def test_where_they_differ_who_runs_it_says_what_auto_is(database: Database) -> None:
    fleet = fleet_of(database, ZEN, HASWELL, HOPPER)
    assert fleet.means("auto", JobKind.COMPILE) is None
    assert fleet.means("auto-gpu", JobKind.TUNE) == HOPPER.gpu_target
    assert fleet.means("haswell", JobKind.COMPILE) == HASWELL.target


def test_auto_gpu_is_refused_with_what_is_there(database: Database) -> None:
    with pytest.raises(InvalidTarget, match="no worker has a CUDA device; there are haswell, znver4"):
        fleet_of(database, ZEN, HASWELL).means("auto-gpu", JobKind.TUNE)


def test_before_there_is_a_worker_nobody_knows(database: Database) -> None:
    fleet = fleet_of(database, ZEN, slots=0, tune_slots=0)
    assert fleet.means("auto-gpu", JobKind.TUNE) is None
    assert fleet.missing(JobKind.COMPILE, Needs()) == ["a worker that runs jobs other than tunings"]


def test_what_is_missing_is_said_of_who_lacks_the_least(database: Database) -> None:
    fleet = fleet_of(database, ARM, HASWELL)
    assert fleet.missing(JobKind.BENCH, Needs(resolve("x86-64-v3"))) == []
    assert fleet.missing(JobKind.BENCH, Needs(resolve("cuda-sm80"))) == [
        "a CUDA device of compute capability 8.0 (there is none)"
    ]


def test_who_is_silent_takes_nothing_and_is_shown(database: Database) -> None:
    fleet = fleet_of(database, ZEN)
    with database.begin() as connection:
        connection.execute(sa.update(tables.instances).values(heartbeat=tables.instances.c.heartbeat - 3600))
    assert [each.to_dict()["state"] for each in fleet.every()] == ["silent"]
    assert fleet.missing(JobKind.COMPILE, Needs()) == ["a worker that runs jobs other than tunings"]


def test_a_name_is_understood_while_its_workers_are_silent(database: Database) -> None:
    """After a restart of the database all heartbeats are late: what was a target before is one still."""
    fleet = fleet_of(database, ZEN, HASWELL, HOPPER)
    with database.begin() as connection:
        late = sa.update(tables.instances).where(tables.instances.c.id != "w0")
        connection.execute(late.values(heartbeat=tables.instances.c.heartbeat - 3600))
    assert [each.state for each in fleet.every()] == ["alive", "silent", "silent"]
    assert fleet.means("haswell", JobKind.COMPILE) == HASWELL.target
    assert fleet.means("auto-gpu", JobKind.TUNE) == HOPPER.gpu_target
    assert fleet.means("auto", JobKind.COMPILE) == ZEN.target, "who lives is asked what `auto` is"


def test_a_server_that_is_alone_lives_as_it_was_asked(database: Database) -> None:
    """On a machine so busy that its heartbeat is late it would refuse every job."""
    fleet = fleet_of(database, ZEN, role=Role.SERVER)
    with database.begin() as connection:
        connection.execute(sa.update(tables.instances).values(heartbeat=tables.instances.c.heartbeat - 3600))
    assert [each.to_dict()["state"] for each in fleet.every()] == ["silent"]
    assert fleet.missing(JobKind.COMPILE, Needs()) == []


def test_a_worker_is_described(database: Database) -> None:
    (shown,) = [each.to_dict() for each in fleet_of(database, HOPPER).every()]
    assert (shown["role"], shown["state"], shown["slots"], shown["running"]) == (
        "worker",
        "alive",
        {"jobs": 1, "tunings": 1},
        0,
    )
    assert shown["machine"]["kind"] == "haswell cuda-sm90"
    assert shown["machine"]["gpus"] == [{"name": "A Hopper", "capability": "9.0"}]
