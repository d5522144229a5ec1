"""Runs, their journals, and how a finding gets smaller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.case import Case
from tests.fuzz.child import Child
from tests.fuzz.findings import Known
from tests.fuzz.run import JOURNAL, Plan, fuzz
from tests.fuzz.shrink import shrink
from tests.fuzz.summary import new_findings, summary
from tests.fuzz.test_check import RISING, case_of

FAKE = """
import json, os, sys
for line in sys.stdin:
    index = json.loads(line)["index"]
    if index == 1:
        os._exit(7)
    print(json.dumps({"drawn": 3}), flush=True)
    if index == 2:
        os.abort()
    row = {"kind": "ok", "compared": 5, "unsaid": 0, "nodes": {"Add float32": 2}, "done": True}
    print(json.dumps(row), flush=True)
"""
NOTHING = Known({}, {})


def test_a_run_goes_on_where_its_journal_ends(tmp_path: Path) -> None:
    fake = (sys.executable, "-c", FAKE.replace("index == 2", "False"))
    rows = fuzz(Plan(tmp_path, "s", 4, workers=2, known=NOTHING, command=fake))
    assert sorted((row["index"], row["kind"]) for row in rows) == [(0, "ok"), (1, "undrawn"), (2, "ok"), (3, "ok")]
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('\n{"seed": "s", "ind')
    before = (tmp_path / JOURNAL).stat().st_size
    assert len(fuzz(Plan(tmp_path, "s", 4, known=NOTHING, command=("false",)))) == 4
    assert (tmp_path / JOURNAL).stat().st_size == before
    assert len(fuzz(Plan(tmp_path, "s", 5, workers=1, known=NOTHING, command=fake))) == 5


def test_a_run_ends_at_its_limit(tmp_path: Path) -> None:
    assert fuzz(Plan(tmp_path, "s", 4, limit_s=0, known=NOTHING, command=("false",))) == []


def test_a_process_that_dies_of_a_graph_is_a_crash(tmp_path: Path) -> None:
    child = Child(tmp_path, (sys.executable, "-c", FAKE))
    assert child.ask({"index": 1})["kind"] == "undrawn"  # before the graph was there
    crash = child.ask({"index": 2})
    assert crash["kind"] == "crash" and "status -6" in crash["said"]
    assert child.ask({"index": 3})["kind"] == "ok"
    child.close()


def test_a_finding_is_shrunk_to_the_node_that_fails() -> None:
    names = ["x", *"abcdefgh"]
    ops = ["Exp", "Neg", "Abs", "Tanh", "Sin", "Cos", "Floor", "Relu"]
    case = case_of(*zip(ops, names, names[1:], strict=False), x=RISING)
    case.envs.append({"x": RISING * 2})

    def ask(tried: Case) -> dict[str, Any]:
        return {"kind": "wrong" if any(node.op_type == "Tanh" for node in tried.nodes) else "ok"}

    small = shrink(case, {"kind": "wrong"}, ask, limit_s=60)
    assert [node.op_type for node in small.nodes] == ["Tanh"]
    assert len(small.envs) == 1 and list(small.envs[0]) == list(small.nodes[0].input)


def test_a_case_is_the_same_out_of_its_files(tmp_path: Path) -> None:
    case = case_of(("Exp", "x", "y"), x=RISING, opt_level=1)
    case.symbols = {"x": {0: "n"}}
    case.save(tmp_path)
    again = Case.load(tmp_path)
    assert again.model().SerializeToString() == case.model().SerializeToString()
    assert again.symbols == case.symbols and again.options == case.options
    assert np.array_equal(again.envs[0]["x"], RISING)


def test_known_findings_are_no_news() -> None:
    rows: list[dict[str, Any]] = [{"kind": "wrong", "signature": "wrong: Exp(float32)", "index": 1}, {"kind": "ok"}]
    assert list(new_findings(rows, NOTHING)) == ["wrong: Exp(float32)"]
    assert not new_findings(rows, Known({"wrong: Exp(float32)": "open"}, {}))
    assert not new_findings(rows, Known({"wrong: *Exp*": "open"}, {}))
    assert new_findings(rows, Known({"caught: *Exp*": "open"}, {}))
    said = summary(rows, Known({}, {"Sinh": "open"}), ["Exp", "Sinh"])
    assert "graphs: 2; 1 wrong, 1 ok" in said and "never ran: Exp" in said and "1 times wrong: Exp(float32)" in said
