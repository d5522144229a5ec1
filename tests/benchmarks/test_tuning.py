"""The benchmark beside upstream: both get the same operators, curves survive files, kernels are timed in turns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tuning import __main__ as command
from benchmarks.tuning.cases import CASES, shapes_of
from benchmarks.tuning.chart import draw
from benchmarks.tuning.curve import Curve, read_curve
from benchmarks.tuning.duel import duel
from benchmarks.tuning.ours import task_of
from benchmarks.tuning.upstream import prim_func_of
from relaxc.service.lowering.apply import apply_rule, finish
from relaxc.service.lowering.build import KERNEL, build_kernel
from relaxc.service.lowering.target import to_tvm
from relaxc.service.runtime.peak import Level, Peak
from relaxc.service.tuning.measure.builder_worker import known_rules

CURVE = Curve(
    "gemm",
    "relaxc",
    64,
    20.0,
    ((1, 1.0, 2e-3), (9, 4.0, 1e-3), (64, 20.0, 1e-3)),
    "gemm.so",
    "kernel",
    ((2, 3),),
    "",
    9.5e-4,
)


@pytest.fixture(autouse=True)
def _known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = (Level("L1", 1 << 15, 400.0, 200.0), Level("memory", None, 10.0, 8.0))
    monkeypatch.setattr("benchmarks.tuning.ours.peak", lambda threads: Peak("here", threads, 100.0, levels))


@pytest.mark.parametrize("name", CASES)
def test_both_tuners_get_the_operator(name: str) -> None:
    task, limit_s = task_of(CASES[name])
    assert limit_s > 0
    assert len(task.space) > 1
    ours, theirs = shapes_of(task.func()), shapes_of(prim_func_of(CASES[name]))
    assert theirs[0] == CASES[name].inputs[0]
    assert len(ours) == len(theirs)


def test_a_curve_survives_its_file_and_says_what_it_shows(tmp_path: Path) -> None:
    CURVE.write(tmp_path / "curve.json")
    assert read_curve(tmp_path / "curve.json") == CURVE
    assert CURVE.per_minute == 192
    assert (CURVE.trials_to(0.9), CURVE.trials_to(0.99)) == (9, None)
    draw({"gemm": [CURVE, replace(CURVE, tuner="upstream")]}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_kernels_are_timed_in_turns_and_what_is_done_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, _ = task_of(CASES["depthwise"])
    rule = known_rules("llvm", ())[task.rule]
    made = apply_rule(rule, task.func(), to_tvm(task.target), None)
    assert not isinstance(made, str)
    build_kernel(finish(made.func, task.target, opt_level=2), task.target, tmp_path / "kernel.so")
    ours = replace(
        CURVE, case="depthwise", library=str(tmp_path / "kernel.so"), symbol=KERNEL, shapes=shapes_of(task.func())
    )
    theirs = replace(ours, tuner="upstream", trials=8, seconds=60.0)
    assert set(duel([ours, theirs])) == {"relaxc", "upstream"}
    ours.write(tmp_path / "depthwise.ours.json")
    theirs.write(tmp_path / "depthwise.upstream.json")
    assert command.main(["--tasks", "depthwise", "--out", str(tmp_path)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["pace"] == 24
    assert row["faster"] == pytest.approx(row["ms"]["upstream"] / row["ms"]["relaxc"], abs=0.01)
