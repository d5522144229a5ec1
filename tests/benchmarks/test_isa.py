"""Which instructions a process executes, as a sampler meets them in its memory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import isa, rounds, table
from benchmarks.peers.cases import AVX2, Case, parse
from benchmarks.peers.report import CaseReport, ratio_to_best
from benchmarks.peers.runtimes import RUNTIMES, counts, environment
from benchmarks.peers.workers import Worker


def test_encodings_are_told_by_their_first_byte() -> None:
    codes = {"62f17c4858c1": "evex", "c5fc58c1": "vex", "c4e27db8c2": "vex", "0f58c1": "other", "": "other"}
    assert {text: isa.encoding(bytes.fromhex(text)) for text in codes} == codes


def test_there_is_no_share_where_nothing_can_be_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert isa.avx512_share(os.getpid(), lambda: None, tmp_path) is None


def test_peers_of_a_case_for_avx2_are_those_that_can_be_kept_to_it() -> None:
    case = parse("bert,x86-64-v3")
    assert (case.target, case.label) == (AVX2, "bert,x86-64-v3")
    assert [name for name in RUNTIMES if counts(name, case)] == ["relaxc-other", "openvino", "aotinductor", "torch"]
    assert environment("openvino", case) and not environment("openvino", Case("bert"))
    assert not environment("onnxruntime", case)


def _row(name: str, share: float | None, ms: float) -> Any:
    prepared = {"compile_s": 1.0, "size_bytes": 1, "facts": {"avx512_share": share}}
    ready = {"version": "1", "load_s": 1.0, "forgets_peak": True, "load_peak_bytes": 1}
    return rounds._row(name, parse("vit,x86-64-v3"), [[ms]], prepared, ready, {"peak_bytes": 1}, {})


@pytest.mark.parametrize(("share", "peer"), [(0.33, "torch"), (0.051, "torch"), (0.05, "openvino"), (None, "openvino")])
def test_a_peer_that_does_not_keep_to_avx2_is_listed_and_not_counted(share: float | None, peer: str) -> None:
    rows = (_row("relaxc", 0.0, 9.0), _row("openvino", share, 8.0), _row("torch", 0.0, 10.0))
    ratio = ratio_to_best(
        "relaxc", {each.runtime: each.rounds_ms for each in rows}, [r.runtime for r in rows if r.counts]
    )
    assert ratio is not None and ratio.peer == peer
    said = str(table.details(CaseReport("vit", False, 2, rows, ratio)).caption).splitlines()
    assert said[1].endswith("no peer") == (peer == "torch") and not said[2].endswith("no peer")


def test_the_variables_of_a_runtime_are_its_processs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []
    started = subprocess.Popen

    def start(*args: Any, env: dict[str, str], **kwargs: Any) -> Any:
        given.append(env)
        return started(*args, env=env, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", start)
    Worker("serve", "openvino", parse("mlp,x86-64-v3", size="small"), tmp_path, 1).close()
    assert given[0]["ONEDNN_MAX_CPU_ISA"] == "AVX2"
