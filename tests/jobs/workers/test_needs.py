"""What a job needs, and which machine has it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.jobs.workers.needs import ANYTHING, Needs, needs_of
from relaxc.service.lowering.target import resolve
from tests.jobs.workers.kinds import ARM, HASWELL, HOPPER, ZEN

ALL = {"zen": ZEN, "haswell": HASWELL, "hopper": HOPPER, "arm": ARM}


def can(needs: Needs) -> set[str]:
    return {name for name, machine in ALL.items() if not needs.missing(machine)}


@pytest.mark.parametrize("machine", ALL.values(), ids=ALL)
def test_a_machine_goes_through_json(machine: Machine) -> None:
    assert Machine.from_dict(json.loads(json.dumps(machine.to_dict()))) == machine


def test_needs_go_through_json_and_equal_ones_have_one_key() -> None:
    needs = Needs(resolve("cuda-sm90"), measures=True, tools=("nvcc",))
    again = Needs.from_dict(json.loads(json.dumps(needs.to_dict())))
    assert (again, again.key) == (needs, needs.key)
    assert (ANYTHING.key, Needs.from_dict(None)) == ("", ANYTHING)
    assert Needs(resolve("x86-64-v3")).key != Needs(resolve("x86-64-v3"), measures=True).key


def test_this_machine_says_what_it_is() -> None:
    here = Machine.here()
    assert here.target == resolve("auto")
    assert not here.lacks(here.target)
    assert here.versions["tvm"]


@pytest.mark.parametrize(
    ("kind", "target", "who"),
    [
        (JobKind.TUNE, "x86-64-v3", {"zen", "haswell", "hopper"}),
        (JobKind.TUNE, "znver4", {"zen"}),
        (JobKind.TUNE, "aarch64", {"arm"}),
        (JobKind.TUNE, "cuda-sm90", {"hopper"}),
        (JobKind.TUNE, "cuda-sm80", set()),
        (JobKind.BENCH, "cuda-sm80", {"hopper"}),
        (JobKind.BENCH, "x86-64-v4", {"zen"}),
        (JobKind.VERIFY, "aarch64", {"arm"}),
        (JobKind.COMPILE, "x86-64-v4", {"zen"}),
        (JobKind.COMPILE, "cuda-sm90", {"hopper"}),
    ],
)
def test_a_job_goes_where_its_code_can_be_run_or_measured(kind: JobKind, target: str, who: set[str]) -> None:
    assert can(needs_of(kind, resolve(target), target, can_be_run=True)) == who


def test_a_compile_that_nobody_can_verify_needs_a_compiler_only() -> None:
    assert needs_of(JobKind.COMPILE, resolve("aarch64"), "aarch64", can_be_run=False) == ANYTHING
    assert can(needs_of(JobKind.COMPILE, resolve("cuda-sm90"), "cuda-sm90", can_be_run=False)) == {"zen", "hopper"}


def test_what_is_resolved_where_it_runs_needs_a_gpu_if_it_says_so() -> None:
    assert needs_of(JobKind.COMPILE, None, "auto", can_be_run=True) == ANYTHING
    for kind in (JobKind.TUNE, JobKind.COMPILE):
        needs = needs_of(kind, None, "auto-gpu", can_be_run=True)
        assert can(needs) == {"hopper"}
        assert needs.missing(replace(HOPPER, tools=())) == ["the program nvcc"]


def test_what_is_missing_is_said() -> None:
    tune = needs_of(JobKind.TUNE, ZEN.target, "znver4", can_be_run=True)
    assert "CPU feature avx512f" in tune.missing(HASWELL)
    assert tune.missing(ARM) == ["a CPU of architecture x86_64 (this one is aarch64)"]
    assert Needs(HASWELL.target, measures=True).missing(ZEN) == ["a haswell CPU (this one is znver4)"]
