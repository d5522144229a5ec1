"""Traces of MetaSchedule: drawn from a seed, replayed exactly, and refused where they might do more than schedule."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi

from relaxc.schedules.metaschedule.trace_check import parse
from relaxc.schedules.metaschedule.traces import METASCHEDULE, sample
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm

TARGET = to_tvm(resolve("auto"))


def argmax() -> Any:
    x = te.placeholder((16, 96), name="x")
    return te.create_prim_func([x, topi.argmax(x, axis=1)])


@pytest.fixture(scope="module")
def traces() -> tuple[str, ...]:
    return sample(argmax(), TARGET, seed=7, count=16)


def test_the_seed_says_which_traces(traces: tuple[str, ...]) -> None:
    assert len(set(traces)) == len(traces) > 4
    assert sample(argmax(), TARGET, seed=7, count=16) == traces
    assert sample(argmax(), TARGET, seed=8, count=16) != traces


def test_a_trace_gives_the_same_schedule_again_and_its_numbers_are_right(traces: tuple[str, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((16, 96)).astype("float32")
    for trace in traces[:4]:
        one, other = (METASCHEDULE.replay(argmax(), trace) for _ in range(2))
        assert isinstance(one, Schedule) and isinstance(other, Schedule)
        tvm.ir.assert_structural_equal(one.func, other.func)
        library = tvm.compile(tvm.IRModule({"main": one.func.with_attr("global_symbol", "main")}), TARGET)
        out = tvm.runtime.empty((16,), "int32")
        library["main"](tvm.runtime.tensor(x), out)
        np.testing.assert_array_equal(out.numpy(), x.argmax(axis=1))


def test_nothing_is_drawn_for_what_has_no_blocks() -> None:
    x = te.placeholder((4,), name="x")
    func = te.create_prim_func([x, te.extern((4,), [x], lambda i, o: tvm.tirx.call_packed("f", i[0], o[0]), "float32")])
    assert len(sample(func, TARGET, seed=1, count=4)) <= 1


def test_a_trace_for_something_else_is_declined_with_a_reason(traces: tuple[str, ...]) -> None:
    x = te.placeholder((5,), name="x")
    found = METASCHEDULE.replay(te.create_prim_func([x, topi.nn.relu(x)]), traces[0])
    assert isinstance(found, Declined) and found.reason.startswith("its trace does not apply: ")


def changed(trace: str, **parts: Any) -> str:
    """The trace with an instruction before all others, or with other decisions."""
    steps, decisions = json.loads(trace)
    if "step" in parts:
        steps.append(parts["step"])
    return json.dumps([steps, parts.get("decisions", decisions)])


REFUSED = {
    "code of its own": (
        {"step": ["Annotate", ["b0", '"X"'], ["pragma_import_llvm"], []]},
        "Annotate: the key is not one of those",
    ),
    "objects from JSON": ({"step": ["TransformLayout", ["b0"], [0, 0, "{}"], []]}, "instruction TransformLayout"),
    "another type": ({"step": ["UnsafeSetDType", ["b0"], [0, "int8"], []]}, "instruction UnsafeSetDType"),
    "what is not there": ({"step": ["Explode", [], [], []]}, "instruction Explode"),
    "unrolling without end": (
        {"step": ["Annotate", ["b0", 1 << 19], ["pragma_auto_unroll_max_step"], []]},
        "pragma_auto_unroll_max_step is at most 512",
    ),
    "another memory": ({"step": ["CacheWrite", ["b0"], [0, "shared"], ["b90"]]}, "CacheWrite: the scope is not global"),
    "text as an input": ({"step": ["Parallel", ["import os"], [], []]}, "inputs that are no numbers"),
    "a huge number": ({"step": ["Fuse", ["l2", 1 << 40], [1], ["l90"]]}, "inputs that are no numbers"),
    "chance": ({"decisions": []}, "decisions are not those"),
    "no decision at all": ({"decisions": [[0]]}, "a decision is"),
}


@pytest.mark.parametrize(("parts", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_hostile_trace_is_refused_before_tvm_sees_it(
    parts: dict[str, Any], reason: str, traces: tuple[str, ...]
) -> None:
    found = METASCHEDULE.replay(argmax(), changed(traces[0], **parts))
    assert isinstance(found, Declined)
    assert found.reason.startswith("its trace is refused: ") and reason in found.reason


def test_a_tile_of_nothing_is_refused(traces: tuple[str, ...]) -> None:
    """TVM would divide by it."""
    steps, decisions = json.loads(next(trace for trace in traces if "SamplePerfectTile" in trace))
    tiled = [[place, [0] * len(d) if isinstance(d, list) else d] for place, d in decisions]
    with pytest.raises(ValueError, match="SamplePerfectTile cannot decide on this"):
        parse(json.dumps([steps, tiled]))


@pytest.mark.parametrize("text", ["", "[]", "{}", "[[], {}]", "[[1], []]", "[" * 60000, "x" * (1 << 20), '[["a"],[]]'])
def test_what_is_no_trace_is_refused(text: str) -> None:
    found = METASCHEDULE.replay(argmax(), text)
    assert isinstance(found, Declined) and found.reason.startswith("its trace is refused: ")
