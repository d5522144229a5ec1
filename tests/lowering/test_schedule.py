"""The schedule stage: its report, its order record → rule → fallback, equal PrimFuncs, and errors by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, tirx
from tvm.script import tirx as T

from relaxc.schedules.cpu import RULES
from relaxc.schedules.strict import STRICT
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.errors import CompileFailed
from relaxc.service.lowering import schedule
from relaxc.service.lowering import schedule as schedule_function
from relaxc.service.lowering.schedule import points_of
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.records.record import Record, RecordSet, RecordTarget
from tests.records.samples import record_of_row
from tests.schedules.harness import legalized, run

R = relax.op


def two_equal_products():
    def build(x, y):
        return R.add(R.matmul(x, y), R.nn.relu(R.matmul(y, x)))

    return legalized(build, [(32, 32), (32, 32)], ["float32"] * 2, fuse=False)


def test_the_report():
    scheduled = schedule(two_equal_products(), resolve("x86-64-v4"))
    rows = {row["function"]: row for row in scheduled.report}
    assert set(rows) == {"matmul", "relu", "add"}
    row = rows["matmul"]
    assert (row["rule"], row["source"], row["flops"], row["bytes"]) == ("cpu.matmul", "rule", 2 * 32**3, 3 * 4 * 32**2)
    assert set(row["parameters"]) == {"rows", "vectors", "lanes", "packed", "row_tasks"}
    assert all(rule.startswith("cpu.") and reason for rule, reason in rows["add"]["declined"])
    assert rows["add"]["rule"] == "cpu.injective" and rows["add"]["version"] >= 1


def test_equal_functions_are_scheduled_once(monkeypatch):
    module = two_equal_products()
    again = tvm.IRModule({**dict(module.functions_items()), relax.GlobalVar("twin"): module["matmul"]})
    asked = []
    from relaxc.schedules.cpu import RULES

    matmul = next(rule for rule in RULES if rule.name == "cpu.matmul")
    original = type(matmul).apply
    monkeypatch.setattr(type(matmul), "apply", lambda *a: asked.append(a) or original(*a))
    scheduled = schedule(again, resolve("x86-64-v4"))
    rows = {row["function"]: row for row in scheduled.report}
    assert rows["twin"]["workload"] == rows["matmul"]["workload"]
    assert len(asked) == 3  # the product once, add, relu


def test_workloads_do_not_depend_on_the_process():
    """The hash is in the manifest, and a manifest is the same on every machine."""
    rows = schedule(two_equal_products(), resolve("x86-64-v3")).report
    assert rows[0]["workload"] == schedule(two_equal_products(), resolve("x86-64-v3")).report[0]["workload"]
    assert {len(row["workload"]) for row in rows} == {16}


def test_progress_and_dumps():
    seen, dumped = [], []
    schedule(
        two_equal_products(),
        resolve("x86-64-v3"),
        progress=lambda done, total: seen.append((done, total)),
        dump=lambda name, text, suffix="py": dumped.append((name, text())),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [name for name, _ in dumped] == ["tir_before_schedule", "tir_after_schedule"]
    assert "T.vectorized" in dumped[1][1] and "T.vectorized" not in dumped[0][1]


PARAMETERS = {"rows": 2, "vectors": 2, "lanes": 16, "packed": 1, "row_tasks": 1}
SPEC = resolve("x86-64-v4")


def product_row(*records: Record) -> dict[str, Any]:
    rows = schedule(two_equal_products(), SPEC, records=RecordSet(records)).report
    return next(row for row in rows if row["function"] == "matmul")


def tuned(**fields: Any) -> Record:
    return record_of_row(product_row(), SPEC, **{"parameters": PARAMETERS, **fields})


def test_a_record_wins_and_is_replayed():
    won = tuned()
    row = product_row(won)
    assert (row["rule"], row["source"], row["parameters"]) == ("cpu.matmul", "record", PARAMETERS)
    behind = {"digest": won.digest, "date": won.date, "seconds": won.seconds, "untuned_s": won.untuned_s}
    assert row["record"] == behind and row["passed_over"] == []


def test_a_record_wins_over_a_rule_that_would_have_come_first():
    """The product is taken by cpu.matmul; the last rule takes everything."""
    last = RULES[-1]
    row = product_row(tuned(rule=last.name, version=last.version, parameters={}))
    assert (row["rule"], row["source"]) == (last.name, "record")


OTHER_KEYS = {
    "another CPU": {"target": RecordTarget("llvm", "znver4", "avx512")},
    "shorter vectors": {"target": RecordTarget("llvm", "x86-64-v4", "avx512-256")},
    "a GPU": {"target": RecordTarget("cuda", arch="sm_90")},
    "another dtype": {"dtype": "float16"},
    "a colliding hash": {"shapes": "32x32 32x32 32x33"},
    "another workload": {"workload": "f" * 16},
}


@pytest.mark.parametrize("fields", OTHER_KEYS.values(), ids=OTHER_KEYS)
def test_a_record_for_something_else_is_never_applied(fields):
    row = product_row(tuned(**fields))
    assert (row["source"], row["record"], row["passed_over"]) == ("rule", None, [])
    assert row["parameters"] != PARAMETERS


VERSIONS = {rule.name: rule.version for rule in RULES}
MATMUL = VERSIONS["cpu.matmul"]
MISFITS = {
    "an older template": ({"version": MATMUL - 1}, f"has version {MATMUL}, the record is for {MATMUL - 1}"),
    "a newer template": ({"version": MATMUL + 1}, f"has version {MATMUL}, the record is for {MATMUL + 1}"),
    "a rule that is gone": ({"rule": "cpu.forgotten"}, "there is no rule cpu.forgotten for this target"),
    "a parameter that is gone": ({"parameters": {"rows": 2}}, "no longer takes its parameters: the template's"),
    "a value that is gone": ({"parameters": {**PARAMETERS, "rows": 999}}, "no longer takes its parameters: rows may"),
    "a rule that declines": (
        {"rule": "cpu.depthwise", "version": VERSIONS["cpu.depthwise"]},
        "cpu.depthwise declines: ",
    ),
    "other threads": ({"threads": SPEC.cores + 1}, f"for {SPEC.cores + 1} threads, the target has {SPEC.cores}"),
    "a trace": ({"trace": "[]"}, "cpu.matmul replays no traces"),
}


@pytest.mark.parametrize(("fields", "reason"), MISFITS.values(), ids=MISFITS)
def test_a_record_that_does_not_fit_any_more_is_passed_over_with_a_reason(fields, reason):
    old = tuned(**fields)
    row = product_row(old)
    assert (row["source"], row["record"]) == ("rule", None)
    [[digest, said]] = row["passed_over"]
    assert digest == old.digest and reason in said


def test_the_next_record_is_asked_after_one_that_does_not_fit():
    gone, fits = tuned(rule="cpu.forgotten", seconds=1e-9), tuned()
    row = product_row(gone, fits)
    assert row["record"]["digest"] == fits.digest and [over[0] for over in row["passed_over"]] == [gone.digest]


def test_no_record_is_used_without_optimization():
    rows = schedule(two_equal_products(), SPEC, opt_level=0, records=RecordSet([tuned()])).report
    assert {row["source"] for row in rows} == {"rule"}


def test_a_replayed_record_computes_the_same():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((32, 32)).astype("float32") for _ in range(2)]
    rule = next(rule for rule in RULES if rule.name == "cpu.matmul")
    func = two_equal_products()["matmul"]
    target = to_tvm(resolve("x86-64-v4"))
    made = rule.apply(func, target, PARAMETERS)
    library = tvm.compile(tvm.IRModule({"main": made.func.with_attr("global_symbol", "main")}), target)
    out = tvm.runtime.empty((32, 32), "float32")
    library["main"](*map(tvm.runtime.tensor, arrays), out)
    np.testing.assert_allclose(out.numpy(), arrays[0] @ arrays[1], rtol=1e-4)


def test_the_size_of_a_templates_space():
    func = two_equal_products()["matmul"]
    assert points_of(func, "cpu.matmul", SPEC) > 10
    assert points_of(func, "cpu.fallback", SPEC) == points_of(func, "cpu.forgotten", SPEC) == 1
    assert points_of(func, "cpu.depthwise", SPEC) == 1


class _Breaks:
    name, version = "test.breaks", 1

    def __init__(self, error: Exception) -> None:
        self.error = error

    def apply(self, func, target, parameters=None):
        raise self.error

    def choices(self, func, target):
        return {}


class _Takes:
    name, version = "test.takes", 1

    def apply(self, func, target, parameters=None):
        return Schedule(func) if len(func.params) == 3 else Declined("not three parameters")

    def choices(self, func, target):
        return {}


def test_only_a_schedule_error_is_a_decline(monkeypatch):
    from relaxc.schedules import cpu

    monkeypatch.setattr(cpu, "RULES", (_Breaks(s_tir.ScheduleError("Error message: no such loop")), *cpu.RULES))
    with pytest.raises(CompileFailed, match=r"test\.breaks took a PrimFunc on which TVM then refused a step"):
        schedule(two_equal_products(), resolve("x86-64-v4"))
    monkeypatch.delenv(STRICT)
    row = schedule(two_equal_products(), resolve("x86-64-v4")).report[0]
    assert row["declined"][0] == ["test.breaks", "TVM refused a step: no such loop"]
    monkeypatch.setattr(cpu, "RULES", (_Breaks(KeyError("a bug")), *cpu.RULES))
    with pytest.raises(CompileFailed, match=r"PrimFunc add cannot be scheduled: KeyError") as caught:
        schedule(two_equal_products(), resolve("x86-64-v4"))
    assert caught.value.fields["function"] == "add"
    monkeypatch.setattr(cpu, "RULES", (_Takes(),))
    with pytest.raises(CompileFailed, match=r"every rule declined: test\.takes: not three parameters"):
        schedule(two_equal_products(), resolve("x86-64-v4"))


def test_a_function_that_comes_scheduled_stays():
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        T.func_attr({"tirx.is_scheduled": True})
        for i in range(8):
            with T.sblock("b"):
                v = T.axis.spatial(8, i)
                b[v] = a[v] * T.float32(2)

    scheduled = schedule(tvm.IRModule({"main": main}), resolve("x86-64-v4"))
    assert scheduled.report[0]["rule"] == "given"
    assert isinstance(scheduled.module["main"], tirx.PrimFunc)
    assert "vectorized" not in scheduled.module["main"].script()


def test_opt_level_1_and_0_give_the_same_values():
    x = np.random.default_rng(0).standard_normal((9, 40)).astype("float32")
    outputs = [run(lambda a: R.nn.softmax(R.tanh(a)), [x], opt_level=level).outputs[0] for level in (0, 1, 2, 3)]
    for output in outputs[1:]:
        np.testing.assert_allclose(output, outputs[0], rtol=1e-5)


def test_the_package_gives_the_function_and_not_the_module():
    import relaxc.service.lowering.schedule

    assert callable(schedule_function) and relaxc.service.lowering.schedule is schedule_function
