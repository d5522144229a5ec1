"""`targets`: the machine's peak beside the targets, measured once, and again where that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from relaxc.service.cli.main import main
from relaxc.service.runtime import peak as peak_module
from relaxc.service.runtime.peak import Level, Peak

LEVELS = (Level("L1", 48 << 10, 400.0, 200.0), Level("memory", None, 12.5, 10.0))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """What was asked of the probes, which find a busy machine on more than one thread."""
    calls: list[tuple[int, bool]] = []

    def peak(threads: int, *, again: bool, progress: Callable[[int, int], None]) -> Peak:
        calls.append((threads, again))
        for done in range(3 if again else 0):
            progress(done, 2)
        return Peak("some CPU, 2 cores", threads, 100.0 * threads, LEVELS, alone=threads == 1)

    monkeypatch.setattr(peak_module, "peak", peak)
    return calls


def test_the_peak_is_shown_for_one_thread_and_for_all(
    asked: list[tuple[int, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["targets", "--json"]) == 0
    said = capsys.readouterr()
    shown = json.loads(said.out)
    assert not said.err
    assert (shown["targets"][0]["target"], shown["targets"][0]["missing"]) == ("auto", [])
    assert {"x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4", "sapphirerapids", "aarch64", "cuda-sm80", "cuda-sm90"} <= {
        row["target"] for row in shown["targets"]
    }
    assert [(peak["threads"], peak["gflops"]) for peak in shown["peaks"]] == [(n, 100.0 * n) for n, _ in asked]
    assert shown["peaks"][0]["levels"][0] == {
        "name": "L1",
        "size_bytes": 48 << 10,
        "read_gbps": 400.0,
        "copy_gbps": 200.0,
    }
    assert not any(again for _, again in asked)


def test_the_instructions_of_every_target(asked: list[tuple[int, bool]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--json"]) == 0
    rows = {row["target"]: row["instructions"] for row in json.loads(capsys.readouterr().out)["targets"]}
    assert all(rows.values())

    def found(target: str, *operands: str) -> tuple[str, float]:
        [dot] = [dot for dot in rows[target] if dot["operands"] == list(operands)]
        return dot["intrinsic"], dot["multiply_adds"]

    assert found("x86-64-v3", "float32", "float32") == ("llvm.fma", 16)
    assert found("znver4", "uint8", "int8") == ("llvm.x86.avx512.vpdpbusd.512", 64)
    assert found("aarch64", "int8", "int8") == ("", 4)
    assert found("cuda-sm90", "bfloat16", "bfloat16")[1] == 2048
    assert main(["targets"]) == 0
    assert "auto multiplies, on each core" in capsys.readouterr().out


def test_measure_measures_again(asked: list[tuple[int, bool]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--measure"]) == 0
    said, shown = capsys.readouterr()
    assert [line.split()[:3] for line in shown.splitlines()] == [
        ["measuring", str(n), "threads" if n > 1 else "thread"] for n, _ in asked
    ]
    assert all(again for _, again in asked)
    assert "some CPU, 2 cores" in said
    assert "100 GFLOP/s" in said
    assert "48.0 KiB" in said
    assert ("other processes were running" in said) == (len(asked) > 1)
