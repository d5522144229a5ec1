"""Tasks that are quick to build and to run, and measurers of real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tvm

from relaxc.schedules.template import Declined, Parameters, Schedule
from relaxc.service.config import settings
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.tuning.measure import MeasureLimits, Measurer
from relaxc.service.tuning.task import Task
from tests.processes import name_of
from tests.schedules.cpu.gemm.test_matmul_packed import cpu_named, product_of
from tests.tuning.measure.bad_rules import FAULTS, RULES, plus_one

BAD = "tests.tuning.measure.bad_rules"

LIMITS = MeasureLimits(build_s=60, run_s=60, measure_s=0.02, max_runs=10, quiet_wait_s=0)
"""Generous where a loaded machine could make a test fail, short where only precision is lost."""


def make_task(func: Any, rule: Any, workload: str, default: Parameters | None = None) -> Task:
    """A task of one call."""
    spec = resolve("auto")
    space = rule.points(func, to_tvm(spec))
    assert not isinstance(space, Declined)
    if default is None:
        found = rule.apply(func, to_tvm(spec))
        assert isinstance(found, Schedule)
        default = dict(found.parameters)
    text = tvm.ir.save_json(func)
    return Task(
        workload,
        "kernel",
        text,
        spec,
        "float32",
        rule.name,
        rule.version,
        default,
        space.values,
        1.0,
        1.0,
        1,
        "64x64",
        points=space.listed,
    )


def fault(name: str) -> Parameters:
    """The point that has a fault."""
    return {"fault": FAULTS.index(name)}


@pytest.fixture(scope="session")
def faulty() -> Task:
    """The task of the rule with the faults."""
    return make_task(plus_one(), RULES[0], "faulty")


@pytest.fixture(scope="session")
def matmul() -> Task:
    """A small packed matrix product with a residual and a relu."""
    from relaxc.schedules.cpu.gemm.matmul_packed import MatmulPacked
    from relaxc.schedules.operators import Matmul

    return make_task(product_of((24,), Matmul(m=24, n=64, k=64), cpu_named("auto")), MatmulPacked(), "matmul")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own."""
    monkeypatch.setenv("RELAXC_CACHE_DIR", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def measurer(cache: Path) -> Iterator[Callable[..., Measurer]]:
    """Makes measurers, closes them, and sees that nothing of them is left."""
    made: list[Measurer] = []
    others = set(_workers())  # such as the warm workers of a compile in this process

    def make(*, limits: MeasureLimits = LIMITS, threads: int = 1, **more: Any) -> Measurer:
        made.append(Measurer(resolve("auto"), threads=threads, builders=2, limits=limits, rules=[BAD], **more))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert not set(_workers()) - others
    assert not list((cache / "tuning").glob("*"))


def _workers() -> list[psutil.Process]:
    """Our processes below this one."""
    return [p for p in psutil.Process().children(recursive=True) if name_of(p).startswith("relaxc-")]
