"""`bench` and `profile` on a real artifact: reports that add up, and comparisons that would mislead are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.cli import bench
from relaxc.service.cli.main import main
from relaxc.service.config import settings
from relaxc.service.runtime.bench import BenchReport, Ratio, Timing
from tests.cli.conftest import Relaxc
from tests.runtime.conftest import artifact, linear
from tests.zoo import export

__all__ = ["artifact", "linear"]


@pytest.fixture(scope="module")
def cnn(relaxc: Relaxc, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A .pt2 and its artifact."""
    model, artifact = export("cnn", "pt2"), tmp_path_factory.mktemp("bench") / "cnn.so"
    done = relaxc("compile", model, "-o", artifact)
    assert done.returncode == 0, done.stderr
    return model, artifact


@pytest.fixture(autouse=True)
def _own_cache(cli_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The measured peak goes into the tests' cache folder, not into the user's."""
    monkeypatch.setenv("RELAXC_CACHE_DIR", cli_env["RELAXC_CACHE_DIR"])
    settings.cache_clear()
    yield
    settings.cache_clear()


def _report(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.slow
def test_bench_against_torch_as_a_command(relaxc: Relaxc, cnn: tuple[Path, Path]) -> None:
    model, artifact = cnn
    done = relaxc("bench", artifact, "--against", "torch", "--model", model, "--threads", 1, "--seconds", 0.1, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [row["name"] for row in report["timings"]] == ["relaxc", "torch"]
    assert report["threads"] == 1
    assert report["outputs"]["passed"]
    (ratio,) = report["ratios"]
    assert 0 < ratio["p10"] <= ratio["p90"] and 0 < ratio["low"] <= ratio["high"]
    assert (ratio["median"] is None) == (ratio["high"] > 1.1 * ratio["low"])


@pytest.mark.slow
def test_bench_alone(cnn: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    report = _report(capsys, "bench", cnn[1], "--seconds", 0.05)
    (row,) = report["timings"]
    assert 0 < row["min_ms"] <= row["p50_ms"] <= row["p99_ms"]
    assert report["outputs"] is None
    assert main(["bench", str(cnn[1]), "--seconds", "0.05"]) == 0
    assert "relaxc" in capsys.readouterr().out


@pytest.mark.parametrize("against", ["onnxruntime", "torch"])
def test_a_comparison_that_would_mislead_is_refused(
    artifact: Callable[..., Path], against: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = artifact(digests={"model": "ab" * 32})
    assert main(["bench", str(made), "--against", against]) == 2
    other = export("mlp", "pt2")  # not what the artifact was compiled from
    assert main(["bench", str(made), "--against", against, "--model", str(other)]) == 2
    said = capsys.readouterr().err
    assert "needs --model" in said
    assert ("digests differ" if against == "torch" else "use --against torch") in said


@pytest.mark.slow
def test_profile_adds_up_and_writes_a_trace(
    cnn: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = _report(capsys, "profile", cnn[1], "--runs", 3, "--trace", tmp_path / "trace.json")
    assert sum(row["share"] for row in report["functions"]) == pytest.approx(1, abs=0.01)
    assert all(row["rule"] for row in report["functions"])
    assert report["peak"]["gflops"] > 0
    assert all(row["limit_ms"] >= 0 and row["bound"] and row["lost_ms"] is not None for row in report["functions"])
    assert any(row["parameters"] for row in report["functions"])
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert {event["name"] for event in trace["traceEvents"]} == {row["function"] for row in report["functions"]}
    assert main(["profile", str(cnn[1]), "--runs", "2"]) == 0
    assert "to their limits: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_trace_that_cannot_be_written_is_refused(cnn: tuple[Path, Path], tmp_path: Path) -> None:
    assert main(["profile", str(cnn[1]), "--runs", "1", "--trace", str(tmp_path / "nowhere" / "t.json")]) == 2


def test_a_side_is_one_line_of_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaxc.service.cli.output._PLAIN_WIDTH", 80)
    sides = [Timing(name, 12345, *(12345.678 for _ in range(7)), 98765.4) for name in ("relaxc", "onnxruntime")]
    ratio = Ratio("relaxc", "onnxruntime", 1.4234, 1.03, 2.28, 1.4, 1.45)
    bench._show(BenchReport(5, 0.1, tuple(sides), (ratio,)), 2, 1, None)
    _, header, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, [header, *lines])) <= 80
    assert header.split()[:6] == ["side", "runs", "per", "second", "p50", "p90"]
    assert [line.split()[0] for line in lines[:2]] == ["relaxc", "onnxruntime"]
    assert lines[2] == "relaxc takes 1.42 \N{MULTIPLICATION SIGN} the time of onnxruntime (p10 to p90 1.03 to 2.28)"
