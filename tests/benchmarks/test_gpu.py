"""The GPU benchmark where no GPU is: what is planned and built, where a run goes on, and what is shown."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.gpu import attention_cases, gemm_cases, gemm_sm80_cases, models, rows_cases
from benchmarks.gpu.build import build_kernel_of
from benchmarks.gpu.manifest import Entry, left, read_manifest, read_results, write_manifest
from benchmarks.gpu.measure import measure
from benchmarks.gpu.plan import CASES, kernel_entries, model_entries, sanitizer_entries
from benchmarks.gpu.processes import descendants, signal_all
from benchmarks.gpu.table import tables
from benchmarks.gpu.weights import Unexplained, explain, follow

measuring = sys.modules["benchmarks.gpu.measure"]
FAKE = (sys.executable, "-S", str(Path(__file__).parent / "fake_gpu_child.py"))
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


class Model(nn.Module):
    """A convolution with a batch norm, three products side by side, and a scaled one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32)
        self.norm.running_var.uniform_(0.5, 1.5)
        self.q, self.k, self.v = nn.Linear(64, 96), nn.Linear(64, 64), nn.Linear(64, 64)


def test_weights_are_made_again_from_the_module():
    module = Model().half().eval()
    state = {name: value.detach() for name, value in module.state_dict().items()}
    factor = state["norm.weight"].float() / (state["norm.running_var"].float() + module.norm.eps).sqrt()
    folded = (state["conv.weight"].float() * factor[:, None, None, None]).permute(2, 3, 0, 1).half()
    table = torch.arange(6000, dtype=torch.int64)
    given = {
        "conv": folded,
        "qkv": torch.cat([state[f"{name}.weight"].T for name in "qkv"], 1),
        "scaled": (state["q.weight"].float() * 0.125).half(),
        "bias": state["q.bias"].float(),
        "table": table,
    }
    recipes, carried = explain({name: value.contiguous() for name, value in given.items()}, module)
    assert [bool(recipe.carried) for recipe in recipes] == [False, False, False, True, True]
    assert [part[0] for part in recipes[1].parts] == ["q.weight", "k.weight", "v.weight"]
    rows = json.loads(json.dumps([recipe.to_dict() for recipe in recipes]))
    made = follow(rows, carried, module)
    for value, wanted in zip(made, given.values(), strict=True):
        assert value.dtype == wanted.dtype and value.shape == wanted.shape and value.is_contiguous()
        assert float((value.double() - wanted.double()).abs().max()) <= 2e-3 * float(wanted.double().abs().max())


def test_a_large_constant_of_unknown_origin_is_refused():
    with pytest.raises(Unexplained, match="is made of no tensor"):
        explain({"other": np.random.default_rng(0).standard_normal((1200, 1200))}, Model())


def test_the_plan_names_every_case_once_and_models_come_first():
    models, kernels = list(model_entries()), [entry for entry, _ in kernel_entries()]
    entries = [*models, *kernels, *sanitizer_entries(kernels)]
    assert len({entry.id for entry in entries}) == len(entries)
    assert min(models, key=lambda entry: entry.rank).case == {
        "model": "bert_unmasked", "batch": 32, "mode": "reduce-overhead",
    }  # fmt: skip
    assert {entry.suite for entry in kernels} == set(CASES)
    assert [entry.id for entry, _ in kernel_entries()] == [entry.id for entry in kernels]
    for entry in sanitizer_entries(kernels):
        assert len(entry.case["ids"]) >= 20


def test_a_kernel_is_built_with_the_nearest_point_of_its_space(tmp_path, monkeypatch):
    building = importlib.import_module("relaxc.service.lowering.build")
    monkeypatch.setattr(building, "build_kernel", lambda func, spec, out: out.write_text(str(func.attrs)))
    case = replace(rows_cases.RowsCase("softmax", (2, 3, 264)), parameters={"threads": 100})
    entry = Entry("rows/one", "rows", {"kind_of_case": "odd"})
    made = build_kernel_of((entry, case), tmp_path)
    assert made is not None and (tmp_path / made.files[0]).exists()
    assert made.made["rule"] == "cuda.rows" and made.made["parameters"]["threads"] == 96
    assert made.case["shape"] == (2, 3, 264) and made.made["operands"][:1] == ["x"]


def entry(name: str, rank: int = 0, **case: object) -> Entry:
    return Entry(name, "rows", {"timed": True, **case}, [], 0.3 if "hangs alone" in case else 60.0, rank)


def bundle(folder: Path, *entries: Entry) -> Path:
    write_manifest(folder, entries, {"commit": "0"})
    return folder


def test_a_run_goes_on_where_it_stopped(tmp_path):
    folder = bundle(tmp_path, entry("b", 1), entry("a", 0, dies=True), entry("c", 2, row={"right": False}))
    rows = measure(folder, tmp_path, workers=1, child=FAKE)
    ended = [(row["id"], row["status"]) for row in rows if row["status"] != "cut"]
    assert ended == [("device", "done"), ("a", "failed"), ("b", "done"), ("c", "done")]
    assert "no such instruction" in next(row["failed"] for row in rows if "failed" in row)
    assert measure(folder, tmp_path, child=FAKE) == []
    again = measure(folder, tmp_path, child=FAKE, retry=True)
    assert [row["id"] for row in again if row["id"] != "device"] == ["a"]


def test_a_machine_that_starts_no_child_leaves_all_for_another_call(tmp_path):
    folder = bundle(tmp_path, entry("a"), entry("b", 1))
    (row,) = measure(folder, tmp_path, workers=1, child=(sys.executable, "-S", "-c", "raise OSError('no driver')"))
    assert row["status"] == "cut" and "no driver" in row["failed"]
    assert len(left(read_manifest(folder)[1], read_results(tmp_path))) == 2


def test_what_hangs_is_ended_and_keeps_what_it_found(tmp_path):
    folder = bundle(tmp_path, entry("a", 0, **{"hangs alone": True}), entry("b", 1))
    rows = measure(folder, tmp_path, workers=2, child=FAKE)
    found = {row["id"]: row for row in rows if row["status"] != "cut"}
    assert found["a"]["status"] == "failed" and found["a"]["error"] == 1e-4
    assert found["b"]["status"] == "done"


def test_what_the_budget_cuts_off_is_left_for_the_next_call(tmp_path, monkeypatch):
    folder = bundle(tmp_path, entry("a", hangs=True), entry("b", 1))
    ticks = itertools.count(0, 10)
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)), sleep=lambda seconds: None)
    monkeypatch.setattr(measuring, "time", clock)
    rows = measure(folder, tmp_path, budget_s=40, workers=1, child=FAKE)
    assert [row["id"] for row in rows if row["status"] == "cut"] == ["a"]
    assert [each.id for each in left(read_manifest(folder)[1], read_results(tmp_path))] == ["b", "a"]


def test_a_line_that_was_cut_off_is_measured_again(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"id": "a", "status": "done"}\n{"id": "b", "sta')
    assert [row["id"] for row in read_results(tmp_path)] == ["a"]
    measure(bundle(tmp_path, entry("a"), entry("b")), tmp_path, workers=1, child=FAKE)
    assert [row["id"] for row in read_results(tmp_path) if row["status"] == "done"] == ["a", "device", "b"]


def test_descendants_are_found_and_ended():
    script = "import subprocess, sys; subprocess.run(['sleep', '60'], start_new_session=True)"
    process = subprocess.Popen([sys.executable, "-S", "-c", script])
    try:
        while len(found := descendants(process.pid)) < 2:
            assert process.poll() is None
        signal_all([process.pid], signal.SIGKILL)
        process.wait()
        assert all(not Path(f"/proc/{pid}").exists() or _is_dead(pid) for pid in found)
    finally:
        process.kill()


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX" or not os.kill(pid, 0)
    except OSError:
        return True


@pytest.mark.parametrize("suite", CASES)
def test_the_table_names_a_case_of_every_suite(suite):
    entry = next(entry for entry, _ in kernel_entries() if entry.suite == suite and entry.case["timed"])
    row = {"id": entry.id, "status": "done", "right": True, "us": {"ours": 1.5, "peer": 3.0}, "ratio": 2.0,
           "tflops": 1.0, "gb_per_s": 1.0}  # fmt: skip
    assert "| 1.5 | 3 | peer | 2 |" in tables([entry], [row])


def test_the_table_has_ratios_to_the_better_mode_and_what_is_wrong():
    models = [each for each in model_entries(["resnet50"]) if each.case["batch"] == 1]
    gemm = Entry("gemm/a", "gemm", {**vars(gemm_cases.TIMED[0]), "kind_of_case": "timed"})
    odd = Entry("attention/b", "attention", {**vars(attention_cases.awkward(1, 0)[0]), "kind_of_case": "odd"})
    rows = [
        {"id": "device", "status": "done", "device": "a GPU"},
        {"id": models[0].id, "status": "done", "right": True, "error": 3e-4, "eager_error": 4e-4,
         "worst": 0.0123, "moved": True, "ms": {"ours": 0.2, "reduce-overhead": 0.4, "eager": 5.0}, "ratio": 0.5},
        {"id": models[1].id, "status": "done", "right": True, "error": 3e-4,
         "ms": {"ours": 0.2, "max-autotune": 0.25}, "ratio": 0.8},
        {"id": "gemm/a", "status": "done", "right": True, "us": {"ours": 4.0, "cublas": 6.0, "other": 5.0},
         "ratio": 1.25, "tflops": 150.0, "gb_per_s": 2000.0},
        {"id": "attention/b", "status": "done", "right": False, "error": 0.5, "wrong": "3 of 9"},
    ]  # fmt: skip
    text = tables([*models, gemm, odd], rows)
    assert "| resnet50 | 1 | 0.2 | 0.4 | 0.25 | 0.8 | 5 | 3.0e-04 | 4.0e-04 | 0.0123 |  | by moved weights |" in text
    assert "Geometric mean of the ratios 0.80" in text and "Geometric mean 1.25" in text
    assert "| 4 | 5 | other | 1.25 | 150.0 | 2000.0 |" in text
    assert "0 of 1 are right" in text and "error 0.5, 3 of 9" in text and "0 of 4 entries" in text


@pytest.mark.slow
@needs_nvcc
def test_a_model_is_built_without_its_weights(tmp_path, monkeypatch):
    """The library takes its weights as an argument, and the recipes make them from a module of the same seed."""
    from benchmarks.gpu.build_model import build_model

    monkeypatch.setitem(models.MODELS, "tiny", lambda layers: nn.Conv2d(3, 64, 16, stride=16))
    build_model("tiny", 1, tmp_path, "tiny")
    said = json.loads((tmp_path / "tiny.json").read_text())
    module, _ = models.model_of("tiny", 1)
    assert said["fingerprint"] == models.fingerprint(module)
    made = follow(said["weights"], np.load(tmp_path / "tiny.npz"), module)
    assert [list(each.shape) for each in made] == [recipe["shape"] for recipe in said["weights"]]
    largest = max(said["weights"], key=lambda recipe: np.prod(recipe["shape"]))
    assert largest["parts"] and (tmp_path / "tiny.so").stat().st_size < 1 << 20


_WITHOUT_TVM = """
import contextlib, sys
sys.modules["tvm"] = None
from benchmarks.gpu.__main__ import main
import benchmarks.gpu.measure, benchmarks.gpu.gemm_sm80_device
for words in (["measure", "--help"], ["random", "--help"], ["table", sys.argv[1]]):
    sys.argv[1:] = words
    with contextlib.suppress(SystemExit):
        main()
"""


def test_measuring_needs_no_compiler(tmp_path):
    """A GPU machine has TVM's runtime libraries, and not the compiler: a bundle is read, and its table is shown."""
    case = {**vars(gemm_sm80_cases.TIMED[0]), "kind_of_case": "timed"}
    bundle(tmp_path, Entry("gemm_sm80/a", "gemm_sm80", case))
    command = [sys.executable, "-c", _WITHOUT_TVM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--budget" in done.stdout and "1 of 1 entries were not reached" in done.stdout
