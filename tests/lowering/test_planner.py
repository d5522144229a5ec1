"""Records decide plans: those that come with relaxc are found, and one that is refused is passed over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relaxc.schedules.cpu import planning
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.operators import Attention, Conv2d, Depthwise2d, Operator, Pool2d, operator_from
from relaxc.service.lowering.planner import RecordPlanner
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.records.files import read
from relaxc.service.records.record import RecordSet, RecordTarget
from relaxc.service.records.sources import SHIPPED
from relaxc.service.request import TargetSpec
from tests.records.samples import record

SPEC = resolve("x86-64-v3")
SAPPHIRE_RAPIDS = SHIPPED / "llvm-sapphirerapids-avx512"

OPERATORS: dict[str, Operator] = {
    "depthwise": Depthwise2d(batch=1, channels=64, height=28, width=28, kernel=(3, 3), padding=(1, 1, 1, 1)),
    "channels last": Depthwise2d(batch=1, channels=64, height=14, width=14, kernel=(7, 7), channels_last=True),
    "pool": Pool2d(batch=1, channels=64, height=28, width=28, kernel=(2, 2), strides=(2, 2), reduce="max"),
    "image": Pool2d(batch=1, channels=64, height=14, width=7, kernel=(14, 7), whole=True, reduce="avg"),
    "attention": Attention(batch=1, heads=2, queries=50, keys=60, depth=20, width=24, logit=("add.mn",)),
    "attention of any length": Attention(batch=0, heads=2, queries=0, keys=0, depth=8, width=8, masked="zero"),
}
WRONG = {"attention": {"tiles": 9}, "attention of any length": {"tiles": 9}}
SHIPPED_OPERATORS: dict[str, Operator] = {
    "max pool of ResNet": Pool2d(
        batch=1,
        channels=64,
        height=112,
        width=112,
        kernel=(3, 3),
        strides=(2, 2),
        padding=(1, 1, 1, 1),
        reduce="max",
    ),
    "depthwise of ConvNeXt": Depthwise2d(
        batch=1, channels=96, height=56, width=56, kernel=(7, 7), padding=(3, 3, 3, 3), channels_last=True
    ),
    "mean of ResNet-50": Pool2d(batch=1, channels=2048, height=7, width=7, kernel=(7, 7), whole=True, reduce="avg"),
    **{
        f"attention of {name}": Attention(heads=12, depth=64, width=64, masked="never_nan", **sizes)
        for name, sizes in {
            "BERT": {"batch": 1, "queries": 128, "keys": 128, "logit": ("add.mn",)},
            "BERT, batch 8": {"batch": 8, "queries": 128, "keys": 128, "logit": ("add.bmn",)},
            "GPT-2": {"batch": 1, "queries": 64, "keys": 64, "logit": ("add.mn",)},
            "ViT": {"batch": 1, "queries": 197, "keys": 197},
        }.items()
    },
}


def planner(operator: Operator, template: str, version: int, parameters: Any) -> RecordPlanner:
    """One that knows a record of this template with these parameters."""
    made = record(
        operator=operator.digest,
        dtype=operator.dtype,
        target=RecordTarget.of(SPEC),
        threads=SPEC.cores,
        rule=template,
        version=version,
        parameters=parameters,
    )
    return RecordPlanner(SPEC, RecordSet([made]))


@pytest.mark.parametrize("name", OPERATORS)
def test_a_record_decides_and_one_that_is_refused_is_passed_over(name: str) -> None:
    operator, cpu = OPERATORS[name], cpu_of(to_tvm(SPEC))
    default, *others = planning.space(operator, cpu)
    rule = planning.template(default.template)
    assert rule is not None and others
    asked = planner(operator, rule.name, rule.version, others[0].parameters)
    found = asked.plan(operator)
    assert found.parameters == others[0].parameters and found.origin != "default"
    changed = WRONG.get(name, {"strips": 5})
    wrong = planner(operator, rule.name, rule.version, {**default.parameters, **changed})
    assert wrong.plan(operator) == planning.default(operator, cpu)
    [(_, reason)] = wrong.passed_over[operator.digest]
    assert next(iter(changed)) in reason


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_its_key(name: str) -> None:
    assert operator_from(json.loads(json.dumps(OPERATORS[name].key()))) == OPERATORS[name]


@pytest.mark.parametrize("name", SHIPPED_OPERATORS)
def test_records_that_come_with_relaxc_are_found(name: str) -> None:
    """What names an operator may not change without its records."""
    given = json.loads((SAPPHIRE_RAPIDS / "target.json").read_text())
    spec = TargetSpec.from_dict(given)
    asked = RecordPlanner(spec, read(SHIPPED))
    assert asked.plan(SHIPPED_OPERATORS[name]).origin != "default"
    assert asked.passed_over[SHIPPED_OPERATORS[name].digest] == []


def test_small_weights_decline_winograd_and_its_records() -> None:
    """Its transformed weights take 36 floats for 9; the record of another template is still followed."""
    operator = Conv2d(batch=1, channels=64, height=28, width=28, filters=64, kernel=(3, 3), padding=(1, 1, 1, 1))
    (of_winograd, *_), (direct, *_) = (
        [plan for plan in planning.space(operator, cpu_of(to_tvm(SPEC))) if plan.template == name]
        for name in ("cpu.winograd", "cpu.conv2d_blocked")
    )
    for plan, taken in ((of_winograd, False), (direct, True)):
        version = planning.TEMPLATES[plan.template].version
        records = planner(operator, plan.template, version, dict(plan.parameters)).records
        small = RecordPlanner(SPEC, records, small_weights=True)
        found = small.plan(operator)
        assert found.template == "cpu.conv2d_blocked"
        assert (found.origin != "default") is taken
        assert bool(small.passed_over[operator.digest]) is not taken
        assert RecordPlanner(SPEC, records).plan(operator).template == plan.template
