"""Profiles: every PrimFunc once, joined with the manifest, and a trace that viewers open."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service import config
from service.runtime import Session, load
from service.runtime import peak as peak_module
from service.runtime.peak import Peak, measure, peak
from service.runtime.profile import profile

PEAK = Peak("here", 2, 100.0, 10.0)
SCHEDULE = (
    {"function": "matmul", "rule": "gemm", "source": "rule", "flops": "batch*(8192)", "bytes": "512*batch + 16384"},
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
    assert [row.time_ms for row in report.functions] == sorted((row.time_ms for row in rows.values()), reverse=True)
    assert report.total_ms >= sum(row.time_ms for row in rows.values()) * 0.9
    matmul = rows["matmul"]
    assert (matmul.flops, matmul.bytes, matmul.calls) == (16 * 8192, 512 * 16 + 16384, 1)
    assert matmul.gflops == pytest.approx(16 * 8192 / matmul.time_ms / 1e6, rel=0.01)
    assert matmul.of_peak is not None
    assert matmul.bound in ("compute", "memory")
    assert (matmul.rule, matmul.source) == ("gemm", "rule")
    assert rows["add"].bytes is None  # text in a size that the inputs do not give
    assert rows["add"].of_peak is None


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


def test_the_peak_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_module, "settings", lambda: config.Settings(cache_dir=tmp_path))
    found = peak(1)
    assert found.gflops > 1
    assert found.gbps > 0.1
    monkeypatch.setattr(peak_module, "measure", lambda threads: Peak(found.machine, threads, 1.0, 1.0))
    assert peak(1) == found
    assert peak(2).gflops == 1.0
    (tmp_path / "peak").joinpath(next((tmp_path / "peak").glob("*-1.json")).name).write_text("{")
    assert peak(1).gflops == 1.0


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(peak_module, "settings", lambda: config.Settings(cache_dir=tmp_path / "file"))
    monkeypatch.setattr(peak_module, "measure", lambda threads: PEAK)
    assert peak(1) == PEAK


def test_two_threads_reach_about_what_one_does_or_more() -> None:
    assert measure(2).gflops > measure(1).gflops / 4
