"""Operators against the machine's limits: the table of shapes, the arithmetic, and real runs of small ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.kernels import __main__ as command
from benchmarks.kernels import timing
from benchmarks.kernels.cases import FAMILIES, Case, cases
from benchmarks.kernels.compiled import Compiled, Kernel
from benchmarks.ladder import __main__ as ladder
from relaxc.service.runtime.peak import Level, Peak

LEVELS = (Level("L1", 1 << 15, 400.0, 200.0), Level("L2", 1 << 20, 50.0, 50.0), Level("memory", None, 10.0, 8.0))
PEAK = Peak("here", 1, 100.0, LEVELS)


@pytest.fixture(autouse=True)
def _known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (command, ladder):
        monkeypatch.setattr(module, "peak", lambda threads, again=False: replace(PEAK, threads=threads))


def kernel(name: str, flops: int) -> Kernel:
    """A kernel with this row."""
    return Kernel(
        lambda *_: None, {"function": name, "rule": "cpu.some", "parameters": {"rows": 2}, "flops": flops}, ()
    )


def test_every_case_is_named_once_in_its_family() -> None:
    names = [(case.family, case.label) for case in cases()]
    assert len(set(names)) == len(names)
    assert {family for family, _ in names} == set(FAMILIES)
    assert len(cases(["conv"])) == 23  # the distinct convolutions of ResNet-50


def test_the_flops_of_a_network_add_up() -> None:
    """ResNet-50's first convolution, and a depthwise one, by hand."""
    by_label = {case.label: case for case in cases(["conv", "depthwise", "gemm"])}
    assert by_label["3->64 7x7/2 224x224"].flops == 2 * 112 * 112 * 64 * 3 * 49
    assert by_label["96->96 3x3/2 112x112"].flops == 2 * 56 * 56 * 96 * 9
    assert by_label["64x512x512"].flops == 2 * 64 * 512 * 512


def test_layout_changes_at_the_ends_do_not_count() -> None:
    conv = [kernel("pack_channels", 0), kernel("fused_conv2d_relu", 9), kernel("unpack_channels1", 0)]
    assert timing.counted(conv) == conv[1:2]
    transposed = [kernel("transpose", 0), kernel("matmul", 5)]
    assert timing.counted(transposed) == transposed
    assert timing.counted(conv[:1]) == conv[:1]
    pool = kernel("max_pool2d", 9)
    assert timing.counted([*conv, pool], before="conv") == [pool]


def test_an_operator_bound_by_bytes_is_timed_out_of_the_caches_too() -> None:
    case = Case("some", "add", ((1000,), (1000,)), (), lambda *_: None, lambda *_: None)
    compiled = Compiled([np.zeros(1000, np.float32)], [kernel("add", 1000)])
    warm, cold = timing.measure(case, compiled, PEAK, seconds=0.001)
    assert (warm.cold, warm.bound, cold.cold, cold.bound) == (False, "L1", True, "memory")
    assert warm.limit_ms == pytest.approx(0.00005, abs=1e-6)  # 8000 B at 400 GB/s, 4000 written at 2/200 - 1/400 ns
    assert cold.limit_ms == pytest.approx(0.0014, abs=1e-6)  # 8000 B at 10 GB/s, 4000 written at 2/8 - 1/10 ns
    assert warm.of_limit == pytest.approx(warm.limit_ms / warm.ms, rel=0.05)
    assert warm.kernels == ({"function": "add", "rule": "cpu.some", "parameters": {"rows": 2}},)
    (only,) = timing.measure(replace(case, flops=10**9), compiled, PEAK, seconds=0.001)
    assert (only.bound, only.limit_ms) == ("compute", 10.0)


def test_tensors_together_are_larger_than_the_last_cache() -> None:
    assert timing._copies(PEAK, 1 << 20) == 2
    assert timing._copies(PEAK, 1 << 10) * (1 << 10) > 1 << 20
    huge = replace(PEAK, levels=(replace(PEAK.levels[1], size_bytes=1 << 40), PEAK.levels[2]))
    assert timing._copies(huge, 1 << 20) == 1 << 10  # a GiB of memory at most
    assert math.isfinite(timing._copies(replace(PEAK, levels=PEAK.levels[2:]), 1 << 20))


SMALL = {
    "gemm": ("64x512x512", "cpu.matmul_packed"),
    "softmax": ("12x128x128", None),
    "depthwise": ("960->960 3x3/1 7x7", None),
}


@pytest.mark.parametrize("family", SMALL)
def test_a_small_operator_goes_through_the_whole_compile(
    family: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    label, rule = SMALL[family]
    out = tmp_path / "kernels.jsonl"
    words = [family, "--only", label, "--threads", "1", "--seconds", "0.01", "--out", str(out)]
    words += ["--dump", str(tmp_path / "dump")]
    assert command.main(words) == 0
    rows: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0]["case"] == label
    assert rows[0]["ms"] > 0
    assert rows[0]["kernels"]
    assert rule in (None, rows[0]["kernels"][0]["rule"])
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    (dumped,) = (tmp_path / "dump").iterdir()
    assert any("tir_after_schedule" in file.name for file in dumped.iterdir())


def test_wrong_numbers_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in cases(["softmax"]))
    wrong = replace(case, torch=lambda x: x.softmax(-1) * 1.001)
    with pytest.raises(AssertionError, match="off by"):
        command.run(wrong, [PEAK], 0.001)


def test_a_command_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["lstm"], ["gemm", "--only", "nothing"]):
        with pytest.raises(SystemExit, match="2"):
            command.main(words)
    assert "there is no family lstm" in capsys.readouterr().err


@pytest.mark.slow
def test_each_rung_of_the_ladders_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    """Small sizes: what a wrong rung gives is an AssertionError."""
    assert ladder.main(["--gemm", "12", "64", "128", "--conv", "32", "16", "--threads", "1"]) == 0
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = ["naive", "tiled", "vectorized", "parallel", "unrolled", "packed", "template"]
    assert [step["rung"] for step in steps] == [*names, *names, "Winograd"]
    assert all(step["gflops"] > 0 for step in steps)
    assert steps[6]["how"].startswith("cpu.matmul_packed")
    assert steps[13]["how"].startswith("cpu.conv2d_blocked")
