"""Profiles: every PrimFunc once, joined with the manifest, and a trace that viewers open."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxc.service.lowering.target import resolve
from relaxc.service.request import TargetSpec
from relaxc.service.runtime import Session, load
from relaxc.service.runtime import profile as profile_module
from relaxc.service.runtime.peak import Level, Peak
from relaxc.service.runtime.profile import profile

PEAK = Peak("here", 2, 100.0, (Level("L1", 1 << 10, 100.0, 50.0), Level("memory", None, 10.0, 10.0)))
SCHEDULE = (
    {
        "function": "matmul",
        "rule": "gemm",
        "source": "rule",
        "flops": "batch*(8192)",
        "bytes": "512*batch + 16384",
        "written_bytes": "256*batch",
        "parameters": {"rows": 4},
    },
    {"function": "add", "rule": "nest", "source": "rule", "flops": 64, "bytes": "unknown*4"},
    {"function": "not_called", "rule": "nest", "source": "rule", "flops": 1, "bytes": 1},
)


@pytest.fixture(scope="module")
def session(artifact: Callable[..., Path]) -> Session:
    """Linear with a schedule report."""
    return load(artifact(schedule=SCHEDULE))


def inputs(batch: int = 16) -> dict[str, Any]:
    """Inputs of Linear."""
    return {"x": np.ones((batch, 64), np.float32), "ids": np.arange(batch)}


def test_every_function_is_timed_and_joined_with_the_report(session: Session) -> None:
    report = profile(session, inputs(), runs=5, warmup_s=0, machine_peak=PEAK)
    rows = {row.function: row for row in report.functions}
    assert {"matmul", "add"} <= rows.keys()
    assert not any(name.startswith("vm.") or name == "not_called" for name in rows)
    assert sum(row.share for row in rows.values()) == pytest.approx(1, abs=1e-4)
    lost = [row.time_ms if row.lost_ms is None else row.lost_ms for row in report.functions]
    assert lost == sorted(lost, reverse=True)
    assert report.total_ms >= sum(row.time_ms for row in rows.values()) * 0.9
    matmul = rows["matmul"]
    assert (matmul.flops, matmul.bytes, matmul.calls) == (16 * 8192, 512 * 16 + 16384, 1)
    assert matmul.gflops == pytest.approx(16 * 8192 / matmul.time_ms / 1e6, rel=0.01)
    assert (matmul.rule, matmul.source, matmul.parameters) == ("gemm", "rule", {"rows": 4})
    # 24576 bytes at 10 GB/s, the written ones at as much again, take longer than 131072 FLOPs at 100 GFLOP/s
    assert (matmul.limit_ms, matmul.bound) == (pytest.approx(0.0024576, abs=1e-6), "memory")
    assert matmul.lost_ms == pytest.approx(matmul.time_ms - 0.0024576, abs=1e-5)
    assert matmul.of_limit == pytest.approx(0.0024576 / matmul.time_ms, abs=1e-3)
    assert rows["add"].bytes is None  # text in a size that the inputs do not give
    assert (rows["add"].limit_ms, rows["add"].of_limit, rows["add"].lost_ms) == (None, None, None)


def test_the_limit_is_that_of_the_instructions_of_the_target(
    artifact: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, TargetSpec | None]] = []

    def peak(threads: int, *, target: TargetSpec | None = None) -> Peak:
        asked.append((threads, target))
        return PEAK

    monkeypatch.setattr(profile_module, "peak", peak)
    v2 = resolve("x86-64-v2")
    profile(load(artifact(target=v2), threads=1), inputs(), runs=1, warmup_s=0)
    assert asked == [(1, v2)]


@pytest.mark.parametrize(
    ("dtype", "gflops"), [("uint8+int8+float32", 400.0), ("bfloat16+float32", 100.0), ("float32+uint8", 100.0)]
)
def test_products_of_narrow_operands_are_beside_their_own_peak(
    artifact: Callable[..., Path], dtype: str, gflops: float
) -> None:
    """Of operands whose instruction is the slower way, beside float32's."""
    peak = replace(PEAK, products={"uint8": 400.0, "bfloat16": 50.0})
    row = {"function": "matmul", "flops": 1 << 20, "bytes": 16, "dtype": dtype}
    report = profile(load(artifact(schedule=(row,)), threads=1), inputs(), runs=1, warmup_s=0, machine_peak=peak)
    (found,) = (row for row in report.functions if row.function == "matmul")
    assert (found.limit_ms, found.bound) == (pytest.approx((1 << 20) / gflops / 1e6, abs=1e-5), "compute")


def test_the_trace_is_of_one_run_and_in_order(session: Session) -> None:
    report = profile(session, inputs(), runs=2, warmup_s=0, machine_peak=PEAK)
    trace = json.loads(json.dumps(report.trace()))
    events = trace["traceEvents"]
    assert len(events) == sum(row.calls for row in report.functions)
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    starts = [event["ts"] for event in events]
    assert starts == sorted(starts)
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(events))
    json.dumps(report.to_dict(), allow_nan=False)


def test_a_profiled_session_runs_on_without_the_instrument(session: Session) -> None:
    seen: list[str] = []

    def note(_function: Any, name: str, *_rest: Any) -> int:
        seen.append(name)
        return 0

    session.run_instrumented(inputs(), note)
    assert "matmul" in seen
    seen.clear()
    session(inputs())
    assert not seen
