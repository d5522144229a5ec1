"""Random kernels where no GPU is: what is drawn, what a check finds, where a run goes on, and what it ends with."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.attention_cases import AttentionCase
from benchmarks.gpu.build import described
from benchmarks.gpu.conv_bytes_cases import ConvBytesCase
from benchmarks.gpu.fuzz import run as running
from benchmarks.gpu.fuzz import sanitize as sanitizing
from benchmarks.gpu.fuzz.check_child import as_held, check
from benchmarks.gpu.fuzz.compile_child import build_batch, kernel_of
from benchmarks.gpu.fuzz.draw import SUITES, Drawn, draw
from benchmarks.gpu.fuzz.report import is_bad, report
from benchmarks.gpu.fuzz.run import Plan, fuzz
from benchmarks.gpu.gemm_bytes_cases import BytesCase
from benchmarks.gpu.gemm_cases import Case
from benchmarks.gpu.groups_cases import GroupsCase
from benchmarks.gpu.manifest import Entry, read_results
from benchmarks.gpu.masked_cases import MaskedCase
from benchmarks.gpu.plain_cases import PlainCase
from benchmarks.gpu.rows_cases import RowsCase
from tests.benchmarks.on_cpu import computed

HERE = Path(__file__).parent
FAKE = [sys.executable, "-S", str(HERE / "fake_fuzz_child.py")]
FAMILIES = {
    "attention",
    "conv",
    "decoding",
    "paged",
    "quantized",
    "gemm",
    "gemm_bytes",
    "gemm_sm80",
    "groups",
    "masked",
    "moves",
    "plain",
    "reduced",
    "rows",
}
FAMILIES |= {"conv_bytes", "spread"}


def test_a_case_is_drawn_from_its_seed_and_index_alone():
    every = [draw(3, index) for index in range(400)]
    assert draw(3, 217) == every[217] and draw(4, 217) != every[217]
    assert every[217].chooser().random() == draw(3, 217).chooser().random()
    assert 0.2 < sum(drawn.target == "cuda-sm80" for drawn in every) / len(every) < 0.4
    families = Counter(drawn.family for drawn in every)
    assert set(families) == FAMILIES and min(families.values()) >= 3
    assert 120 < sum(drawn.pointed for drawn in every) < 280
    gemms = [drawn.case for drawn in every if drawn.suite == "gemm"]
    assert {case.epilogue for case in gemms} >= {"none", "bias_gelu", "low"} and any(case.m == 1 for case in gemms)
    assert {case.dtype for case in gemms} == {"float16", "bfloat16", "float32"}
    assert all(case.batch * max(case.m * case.n, case.m * case.k) <= 1 << 23 for case in gemms)


def entry_of(suite: str, case: object) -> Entry:
    entry = Entry("0:0", suite, {"kind_of_case": "random"})
    return replace(entry, case=described(entry, case))


PLAIN = PlainCase("chain", (3, 5, 8), "bfloat16", "float32", ("add", "tanh", "multiply"), ((1, 5, 1), (3, 1, 8)))
SMALL = [
    ("plain", PLAIN),
    ("plain", replace(PLAIN, kind="max", axes=(0, 2))),
    ("plain", PlainCase("grouped", (2, 6, 5, 4), axes=(2, 10, 3, 2))),
    ("plain", PlainCase("spread", (2, 3, 4, 7), "float32", axes=(1, 3))),
    ("rows", RowsCase("layer_norm", (3, 5, 16), "bfloat16", "float32", "residual")),
    ("gemm", Case(2, 3, 16, 24, "float32", "float32", "bias_silu", n_major=False)),
    ("gemm", Case(1, 1, 152, 152, "bfloat16", "bfloat16", "low")),
    ("groups", GroupsCase((1, 1, 1, 2), 2, "bfloat16", "float32", "residual")),
    ("gemm_bytes", BytesCase(5, 16, 32, "uint8", "int32", "zero")),
    ("conv_bytes", ConvBytesCase((2, 5, 6, 16), 8, (3, 2), (1, 2), (1, 1, 0, 1), (1, 2), "int8", "int8", "quantize")),
    ("gemm_bytes", BytesCase(5, 16, 32, "int8", "uint8", "quantize")),
    ("gemm_bytes", BytesCase(5, 16, 32, "uint8", "float16", "scale_residual")),
    ("attention", AttentionCase(2, 4, 3, 21, 8, shared=2, page=8, mask="keys")),
    ("attention", AttentionCase(1, 2, 5, 9, 8, layout="bhsd", page=16, causal=4)),
    *(("masked", MaskedCase(kind, 2, 3, 5, 4)) for kind in ("scores", "full_scores")),
    ("masked", MaskedCase("compared", 1, 3, 5, 4, out="bool")),
    ("masked", MaskedCase("masked", 1, 3, 5, 4, "bool", "bool")),
    ("masked", MaskedCase("bytes", 2, 3, 5, 4, "bool", "int8")),
    ("masked", MaskedCase("product_of_bytes", 2, 3, 5, 4, "int8", "int32")),
    ("masked", MaskedCase("any", 2, 3, 5, 4, "bool", "int8")),
    # NaN, which a row without a softmax is, has no code.
    (
        "attention",
        AttentionCase(2, 2, 5, 9, 8, scored=0.05, rounded=0.004, step=0.02, out="uint8", mask="full", masked="zero"),
    ),
]


@pytest.mark.parametrize(("suite", "case"), SMALL[:1])
def test_the_reference_is_what_the_prim_func_computes(suite, case):
    found = check(entry_of(suite, case), computed(SUITES[suite].prim_func(case)), "cpu", "cpu")
    assert found["right"], found


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "case"), SMALL[1:])
def test_every_reference_is_what_the_prim_func_computes(suite, case):
    test_the_reference_is_what_the_prim_func_computes(suite, case)


def softmax(x, out):
    out.copy_(torch.softmax(x, -1))


def beyond(x, out):
    """Writes an element behind the result."""
    softmax(x, out)
    torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(0)


def before(x, out):
    """Reads an element before its operand."""
    softmax(x, out)
    out[0, 0, 0] += 0 * torch.as_strided(x, (1,), (1,), x.storage_offset() - 1)[0]


def unsteady(count):
    def kernel(x, out):
        softmax(x, out)
        if next(count) == 2:
            out[0, 0, 0] += 1e-3

    return kernel


def spoils(x, out):
    softmax(x, out)
    x[0, 0, 0] += 1


def leaves_one(x, out):
    kept = out[2, 4, 15].clone()
    softmax(x, out)
    out[2, 4, 15] = kept


@pytest.mark.parametrize(
    ("kernel", "named"),
    [
        (beyond, {"wrote_inside": False}),
        (before, {"same_nan": False}),
        (unsteady(itertools.count()), {"equal_bits": False}),
        (spoils, {"inputs_kept": False}),
        (leaves_one, {"equal_bits": False}),
        (lambda x, out: out.fill_(0.0625), {"equal_bits": True}),
    ],
)
def test_a_wrong_kernel_is_found(kernel, named):
    entry = entry_of("rows", RowsCase("softmax", (3, 5, 16), "float32", "float32"))
    assert check(entry, softmax, "cpu", "cpu")["right"]
    found = check(entry, kernel, "cpu", "cpu")
    assert not found["right"] and named.items() <= found.items()


@pytest.mark.parametrize(("given", "right"), [(torch.inf, True), (65504.0, False), (-torch.inf, False)])
def test_a_sum_beyond_the_largest_number_is_infinite(given, right):
    """Of 154,246 numbers from 11:346, which sum up to 94,578: fp16 ends at 65,504."""
    entry = entry_of("plain", PlainCase("sum", (466, 331, 1), steps=("abs",), axes=(0, 1, 2)))
    found = check(entry, lambda x, out: out.fill_(given), "cpu", "cpu")
    assert found["right"] == right, found


def test_what_is_as_near_to_the_largest_number_as_the_tolerance_may_be_infinite_or_not():
    want, inf = torch.tensor([65520.0, 65520.0, -65490.0, 60000.0], dtype=torch.float64), torch.inf
    got = torch.tensor([inf, 65504.0, -inf, inf], dtype=torch.float16)
    assert as_held(want, got, 6e-4).tolist() == [inf, 65520.0, -inf, 60000.0]


def plan(folder: Path, *, compiler: str = "compile", checker: str = "check", indices: range = range(6)) -> Plan:
    fakes = {"compiler": [*FAKE, compiler], "checker": [*FAKE, checker]}
    return Plan(folder, 0, indices, workers=2, runners=2, batch=2, **fakes)


def test_a_run_goes_on_where_it_stopped(tmp_path):
    first = fuzz(plan(tmp_path, indices=range(4)))
    assert len(first) == 4 and not any(map(is_bad, first))
    assert len(fuzz(plan(tmp_path))) == 6
    ids = [row["id"] for row in read_results(tmp_path)]
    assert sorted(ids) == [f"0:{index}" for index in range(6)]
    assert "templates took 6 of 6 (100%); 0 are left" in report(fuzz(plan(tmp_path)), 6)
    assert len(read_results(tmp_path)) == 6


@pytest.mark.parametrize("where", ["compiler", "checker"])
def test_what_dies_costs_one_case(where, tmp_path):
    fake = {"compiler": "compile:dies=0:3"} if where == "compiler" else {"checker": "check:dies=0:3"}
    rows = {row["id"]: row for row in fuzz(plan(tmp_path, **fake))}
    assert len(rows) == 6 and [name for name, row in rows.items() if is_bad(row)] == ["0:3"]
    assert "no such instruction" in rows["0:3"]["failed"]
    assert "1 of 6 are wrong or failed" in report(list(rows.values()), 6)


def test_what_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "_START_S", 0.0)
    monkeypatch.setattr(running, "_HUNG_S", {"cuda": 0.0})
    (row,) = fuzz(plan(tmp_path, checker="check:hangs", indices=range(1)))
    assert row["status"] == "failed" and "it took more than" in row["failed"]


def test_no_time_leaves_all_for_another_call(tmp_path):
    assert fuzz(replace(plan(tmp_path), budget_s=0.0)) == []
    assert len(fuzz(plan(tmp_path))) == 6


def test_a_machine_that_can_check_nothing_leaves_all_for_another_call(tmp_path, capsys):
    checker = (sys.executable, "-S", "-c", "raise OSError('no driver')")
    assert fuzz(replace(plan(tmp_path), checker=checker)) == [] and "no driver" in capsys.readouterr().out
    assert len(fuzz(plan(tmp_path))) == 6


def test_a_wrong_value_is_status_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu", "random", str(tmp_path), "--count", "6"])
    fuzz(plan(tmp_path, indices=range(5)))
    fuzz(plan(tmp_path, checker="check:wrong=0:5"))
    assert main() == 1 and "1 of 6 are wrong or failed" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["gpu", "random", str(tmp_path), "--count", "5"])
    assert main() == 0


@pytest.mark.slow
def test_kernels_that_are_built_together_and_that_fail_alone(tmp_path):
    """The whole way on the CPU: what cannot be built costs no other, and a product with another epilogue is wrong."""
    good, bad = (kernel_of(Drawn(0, i, "gemm", "gemm", Case(1, 3, 8, 8), False), "cpu") for i in range(2))
    found = build_batch([good, (bad[0], None)], tmp_path, "both", "cpu")
    assert [bool(failed) for _, failed in found] == [False, True]
    chosen = (index for index in range(4000) if _is_small(draw(0, index)))
    index = next(chosen)
    wrong = (sys.executable, "-m", "tests.benchmarks.wrong_fuzz_compiler")
    (row,) = fuzz(Plan(tmp_path, 0, range(index, index + 1), "cpu", workers=1, runners=1, compiler=wrong))
    assert is_bad(row) and row["error"] > 0.5 and json.loads(json.dumps(row["case"]))["epilogue"] == "none"


def _is_small(drawn: Drawn) -> bool:
    return drawn.suite == "gemm" and drawn.case.epilogue == "none" and drawn.case.flops < 1 << 20


def test_a_template_is_sanitized_by_kernels_of_another_family_too():
    (drawn,) = sanitizing.chosen("cuda.gemm_sm90:gemm_bytes", 0, 1)
    assert (drawn.family, drawn.suite) == ("gemm_bytes", "gemm_bytes")


@pytest.mark.parametrize(("trouble", "status"), [("", 0), ("check:dies=0:1", 9), ("check:wrong=0:1", 0), ("", 9)])
def test_a_sanitizer_is_clean_where_it_exits_so_and_every_value_is_right(trouble, status, tmp_path, monkeypatch):
    tool = tmp_path / "compute-sanitizer"  # in its place: writes a log, runs the rest, and exits
    tool.write_text(f'#!/bin/sh\necho "a race" > "$6"\nshift 6\n"$@" || exit 9\nexit {status}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sanitizing, "CHECKER", (*FAKE, trouble or "check"))
    row = {"id": "one", "status": "done", "tool": "racecheck", "rule": "cuda.attention_sm90"}
    entries = [Entry(f"0:{index}", "attention", {}) for index in range(3)]
    sanitizing._watch(tmp_path, row, entries, time.monotonic() + 60, threading.Lock())
    (found,) = read_results(tmp_path)
    clean = not trouble and not status
    assert found["right"] is clean and is_bad(found) is not clean and found["of"] == 3
    assert clean or "a race" in found["said"]
