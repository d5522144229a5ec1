"""The comparison with other runtimes: what is asked for, the arithmetic of ratios, and a real run beside one peer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.peers import memory, table
from benchmarks.peers.__main__ import main
from benchmarks.peers.cases import STANDARD, Case, parse
from benchmarks.peers.chart import COLOURS, bars
from benchmarks.peers.files import onnx_path, plain_path
from benchmarks.peers.report import CaseReport, Ratio, Row, geomean, ratio_to_best, summarize
from benchmarks.peers.rounds import Plan, measure
from benchmarks.peers.runtimes import RUNTIMES, counts, relaxc_other, runtime
from benchmarks.peers.workers import Failed, Worker
from tests import zoo
from tests.waiting import until


def row(runtime: str, *rounds: float, counts: bool = True) -> Row:
    """A row with these medians of its turns."""
    median = float(np.median(rounds))
    return Row(runtime, "1.0", counts, rounds, median, median, median, 1.5, 0.5, 1 << 20, 3 << 20, 4 << 20)


def report(case: str, ours: float, theirs: float, batched: bool = False) -> CaseReport:
    """A case with one peer."""
    rows = (row("relaxc", ours, ours, counts=False), row("onnxruntime", theirs, theirs))
    return CaseReport(case, batched, 2, rows, Ratio("onnxruntime", ours / theirs, 0.9, 1.1))


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("resnet50", Case("resnet50")),
        ("resnet50,batch=8", Case("resnet50", 8)),
        ("gpt2,tokens=64", Case("gpt2", None, 64)),
        ("bert,tokens=31,batch=3", Case("bert", 3, 31)),
        ("resnet50,batch=2,int8", Case("resnet50", 2, quantized=True)),
        ("gpt2,tokens=64,bf16", Case("gpt2", tokens=64, precision="bf16")),
    ],
)
def test_a_case_is_read(text: str, case: Case) -> None:
    assert parse(text) == case
    assert parse(case.label) == case


@pytest.mark.parametrize("text", ["resnet51", "bert,batch=0", "bert,width=3", "bert,batch", "nowhere.onnx", ""])
def test_a_case_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no model|not batch=N|no file"):
        parse(text)


def test_the_sizes_of_a_file_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "some model.onnx"
    path.write_bytes(b"")
    case = parse(str(path))
    assert (case.label, case.key, case.is_file) == ("some model", "some-model", True)
    with pytest.raises(ValueError, match="its own"):
        parse(str(path), batch=2)


def test_the_standard_cases_are_the_zoos_and_differ() -> None:
    assert len({case.key for case in STANDARD}) == len(STANDARD)
    assert all(parse(case.label) == case for case in STANDARD)
    assert [case.label for case in STANDARD if case.is_batched] == ["resnet50,batch=8", "bert,batch=8"]


def test_the_ratio_is_to_the_peer_with_the_smallest_median_round_by_round() -> None:
    rounds = {"relaxc": (1.0, 2.0, 4.0), "a": (2.0, 2.0, 2.0), "b": (1.0, 4.0, 4.0), "bf16": (0.1, 0.1, 0.1)}
    found = ratio_to_best("relaxc", rounds, ["a", "b"])
    assert found is not None
    assert (found.peer, found.median) == ("a", 1.0)
    assert found.p10 == pytest.approx(0.6)
    assert found.p90 == pytest.approx(1.8)
    assert ratio_to_best("relaxc", rounds, []) is None
    assert ratio_to_best("absent", rounds, ["a"]) is None


def test_the_geometric_mean() -> None:
    assert geomean([]) is None
    assert geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert geomean([0.9]) == pytest.approx(0.9)


def test_the_bars_are_of_batch_1_and_of_larger_batches_apart() -> None:
    found = summarize([report("a", 0.8, 1.0), report("b", 1.25, 1.0), report("c", 1.06, 1.0, batched=True)])
    assert found.geomean == pytest.approx(1.0)
    assert (found.worst, found.worst_batched) == (1.25, 1.06)
    assert [passed for *_, passed in found.verdicts] == [False, False, False]
    assert all("FAIL" in line for line in table.verdicts(found))
    fast = summarize([report("a", 0.8, 1.0), report("c", 1.05, 1.0, batched=True)])
    assert [passed for *_, passed in fast.verdicts] == [True, True, True]
    assert summarize([]).verdicts == []


def test_a_report_survives_json_and_is_shown() -> None:
    one = report("a", 0.8, 1.0)
    assert CaseReport.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    assert one.memory_ratio == 1.0
    assert table.overview([one]).row_count == 1
    assert table.details(one).row_count == 2
    assert bars([one]) == {"relaxc": [(0, 0.8)], "onnxruntime": [(0, 1.0)]}
    alone = CaseReport("b", False, 2, one.rows[:1], None, {"onnxruntime": "[it] failed"})
    assert bars([alone]) == {}
    assert alone.best is None
    assert table.details(alone).caption == r"\[it] failed"


def test_the_kernels_account_of_memory() -> None:
    assert memory.parse_status("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 12 kB\n", "VmHWM") == 2 << 20
    assert memory.parse_status("", "VmHWM") == 0
    assert memory.peak_bytes() >= memory.resident_bytes() * 0.9 > 0


@pytest.mark.parametrize("name", RUNTIMES)
def test_every_runtime_has_what_a_worker_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAXC_BENCH_OTHER", str(Path(__file__).parents[2]))
    module = runtime(name)
    assert isinstance(module.COUNTS, bool)
    assert all(callable(getattr(module, part)) for part in ("version", "supports", "prepare", "load"))
    assert module.supports(Case("mlp"))
    assert module.supports(Case("file.onnx")) is (name not in ("aotinductor", "torch"))


def test_peers_of_ours_in_bfloat16_are_what_computes_in_it() -> None:
    case = Case("bert", precision="bf16")
    assert case.label == "bert,bf16"
    assert [name for name in RUNTIMES if counts(name, case)] == ["openvino-bf16"]
    assert counts("openvino", Case("bert")) and not counts("openvino-bf16", Case("bert"))


@pytest.mark.slow
def test_another_checkout_compiles_with_the_cases_precision() -> None:
    assert relaxc_other.options(parse("bert,bf16")) == ["--target", "auto", "--precision", "bf16"]
    assert relaxc_other.options(parse("bert,x86-64-v3")) == ["--target", "x86-64-v3"]


@pytest.mark.slow
def test_a_quantized_case_is_beside_what_it_was_made_of(tmp_path: Path) -> None:
    case = Case("cnn", size="small", quantized=True)
    found = measure(case, tmp_path, Plan(["relaxc", "relaxc-fp32", "onnxruntime"], 1, 1, 0.01))
    assert [row.runtime for row in found.rows] == ["relaxc", "relaxc-fp32", "onnxruntime"]
    kinds = {node.op_type for node in onnx.load(onnx_path(case, tmp_path)).graph.node}
    assert "DequantizeLinear" in kinds and plain_path(case, tmp_path) != onnx_path(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "batch", "tokens"), [("bert", 3, 20), ("resnet18", 5, None), ("gpt2", None, 7)])
def test_the_zoo_at_another_size(family: str, batch: int | None, tokens: int | None) -> None:
    model = zoo.sized(zoo.build(family), batch=batch, tokens=tokens)
    tensors = [value for value in (*model.args, *model.kwargs.values()) if hasattr(value, "shape")]
    assert all(batch is None or value.shape[0] == batch for value in tensors)
    assert all(tokens is None or value.shape[1] == tokens for value in tensors)
    if batch is not None:
        assert not (tensors[0][0] == tensors[0][1]).all()
    model.module(*model.args, **model.kwargs)


def test_a_family_without_that_dim_says_so() -> None:
    with pytest.raises(ValueError, match="no dim seq"):
        zoo.sized(zoo.build("cnn"), tokens=3)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cases of these tests are prepared."""
    return tmp_path_factory.mktemp("peers")


@pytest.fixture(autouse=True)
def _own_cache(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAXC_CACHE_DIR", str(work / "relaxc"))


@pytest.mark.slow
def test_ours_beside_onnxruntime(work: Path) -> None:
    steps: list[str] = []
    case, plan = Case("mlp", size="small"), Plan(["relaxc", "onnxruntime"], threads=1, rounds=3, turn_s=0.01)
    found = measure(case, work / case.key, plan, steps.append)
    assert found.failed == {}
    assert [row.runtime for row in found.rows] == ["relaxc", "onnxruntime"]
    for one in found.rows:
        assert len(one.rounds_ms) == 3
        assert 0 < one.p10_ms <= one.median_ms <= one.p90_ms
        assert one.peak_bytes > 1 << 20
        assert one.size_bytes > 0
    peer = found.row("onnxruntime")
    assert peer is not None
    assert peer.agrees
    assert peer.error is not None
    assert peer.error < 1e-4
    assert found.ratio is not None
    assert math.isfinite(found.ratio.median)
    assert steps[0] == "export"
    assert steps[-1] == "round 3 of 3"


@pytest.mark.slow
def test_a_worker_runs_in_its_turn_only(work: Path) -> None:
    case = Case("mlp", size="small")
    folder = work / case.key
    measure(case, folder, Plan(["relaxc", "onnxruntime"], threads=1, rounds=1, turn_s=0.001))
    with Worker("serve", "onnxruntime", case, folder, 2) as worker:
        worker.answer()
        assert len(worker.ask(do="run", warm=0, runs=4)["ms"]) == 4
        until(lambda: _state(worker.pid) == "T")
        before = _cpu_ticks(worker.pid)
        worker.ask(do="run", warm=0, runs=1)
        until(lambda: _state(worker.pid) == "T")
        assert _cpu_ticks(worker.pid) >= before


def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    with Worker("serve", "onnxruntime", Case("mlp"), tmp_path, 1) as worker, pytest.raises(Failed, match="onnxruntime"):
        worker.answer()


def test_a_command_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["mlp", "--peers", "tensorrt"], ["nothing"]):
        with pytest.raises(SystemExit, match="2"):
            main(words)
    said = capsys.readouterr().err
    assert "there is no runtime tensorrt" in said
    assert "there is no model 'nothing'" in said


@pytest.mark.slow
def test_the_command_writes_lines_and_keeps_what_is_there(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers.chart.draw", lambda reports, path: path.write_bytes(b""))
    words = ["mlp", "--size", "small", "--peers", "onnxruntime", "--rounds", "1", "--turn", "0.001", "--threads", "1"]
    words += ["--work", str(work), "--out", str(tmp_path)]
    assert main(words) == 0
    first = capsys.readouterr().out.splitlines()
    assert json.loads(first[0])["case"] == "mlp"
    assert "geomean" in json.loads(first[1])["summary"]
    assert (tmp_path / "results.jsonl").read_text().splitlines() == first[:1]
    assert main([*words, "--resume"]) == 0
    assert capsys.readouterr().out.splitlines() == first


def test_another_checkout_is_a_peer_only_when_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAXC_BENCH_OTHER", raising=False)
    assert not runtime("relaxc-other").supports(Case("mlp"))
    monkeypatch.setenv("RELAXC_BENCH_OTHER", str(Path(__file__).parents[2]))
    assert runtime("relaxc-other").supports(Case("mlp"))


@pytest.mark.slow
def test_this_checkout_beside_itself_has_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAXC_BENCH_OTHER", str(Path(__file__).parents[2]))
    monkeypatch.setenv("RELAXC_CACHE_DIR", str(tmp_path / "store"))
    found = measure(Case("mlp", size="small"), tmp_path / "case", Plan(["relaxc", "relaxc-other"], 1, 1, 0.01))
    ours, other = found.row("relaxc"), found.row("relaxc-other")
    assert ours is not None and other is not None
    assert ours.facts["code"] == other.facts["code"]
    assert other.agrees and other.error == 0.0


def test_every_runtime_has_a_colour_in_the_chart() -> None:
    assert set(COLOURS) == set(RUNTIMES)
