"""The space of every template: the default is a point of it, and points drawn from it compute what numpy does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relaxc.schedules import cpu
from relaxc.schedules.cpu import planning
from relaxc.schedules.hardware import cpu_of
from relaxc.schedules.operators import BlockMatmul, Conv2d, Depthwise2d, Matmul, Pool2d
from relaxc.schedules.plan import plan_of
from relaxc.schedules.planned import Planned
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.cpu.gemm.test_matmul_packed import cpu_named
from tests.schedules.spaces import BYTES, CASES, WIDTHS, Case, agree, functions, points, rule

PARAMETERS = [
    pytest.param(case, dtype, bits, id=f"{case.rule}-{case.name}-{dtype}-{bits}")
    for case in CASES
    for dtype in case.dtypes
    for bits in WIDTHS
]
RUN = [pytest.param(case, id=f"{case.rule}-{case.name}") for case in CASES]


ELSEWHERE = {"cpu.conv2d_tiles"}
"""For CPUs with AMX, which its own tests emulate: its whole space, of each of its dtypes."""


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == {each.name for each in cpu.RULES} - ELSEWHERE


@pytest.mark.sampled(most=90)
@pytest.mark.parametrize(("case", "dtype", "bits"), PARAMETERS)
def test_the_default_is_a_point_of_the_space(case: Case, dtype: str, bits: int) -> None:
    """A record of the default must be taken again, in every dtype and for every vector width."""
    asked, target = rule(case.rule), to_tvm(resolve(WIDTHS[bits]))
    for func in functions(case, dtype, WIDTHS[bits]):
        default, space = asked.apply(func, target), asked.points(func, target)
        assert isinstance(default, Schedule), default
        assert not isinstance(space, Declined), space
        outside = {key: value for key, value in default.parameters.items() if value not in space.values[key]}
        assert not outside and set(space.values) == set(default.parameters), (outside, space)
        assert not space.listed or space.listed[0] == default.parameters
        again: Any = asked.apply(func, target, default.parameters)
        assert isinstance(again, Schedule)


@pytest.mark.parametrize(("case", "dtype", "bits"), PARAMETERS)
def test_a_template_with_plans_refuses_no_point_that_it_lists(case: Case, dtype: str, bits: int) -> None:
    asked, target = rule(case.rule), to_tvm(resolve(WIDTHS[bits]))
    for func in functions(case, dtype, WIDTHS[bits]) if isinstance(asked, Planned) else ():
        space, plan = asked.points(func, target), plan_of(func)
        assert not isinstance(space, Declined) and plan is not None
        cpu = cpu_of(target)
        assert {asked.refusal(plan.operator, point, cpu) for point in space.listed} == {""}
        assert asked.refusal(plan.operator, {**plan.parameters, "warp": 9}, cpu)


IMAGE: dict[str, Any] = {"batch": 1, "channels": 64, "height": 14, "width": 14}
PADDED = IMAGE | {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
OPERATORS = [
    Matmul(m=39, n=330, k=256),
    BlockMatmul(m=1, n=330, k=256, block=32, bits=4),
    Conv2d(**PADDED, filters=64),
    Conv2d(**PADDED, filters=64, strides=(2, 2)),
    Depthwise2d(**PADDED),
    Pool2d(**PADDED, reduce="max"),
    Pool2d(**IMAGE, kernel=(14, 14), reduce="sum", whole=True),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: planning.default(op, cpu_named("auto")).template)
@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("bfloat16", "float32"), ("float64", "float64")])
def test_a_template_with_plans_refuses_dtypes_that_it_does_not_declare(operator: Any, dtypes: tuple[str, str]) -> None:
    """Records are keyed by dtypes too, and whoever writes one chooses them."""
    here = cpu_named("auto")
    plan = planning.default(operator, here)
    other = replace(operator, operands=(dtypes[0],) * len(operator.operands), accumulate=dtypes[1], out=dtypes[0])
    asked = planning.TEMPLATES[plan.template]
    if (*other.operands, other.accumulate) in asked.dtypes:
        assert asked.refusal(other, plan.parameters, here) == ""
        return
    assert asked.refusal(other, plan.parameters, here) == f"it computes no {other.kind} of {other.dtype}"
    assert not list(asked.space(other, here))


@pytest.mark.parametrize("case", RUN)
def test_points_of_the_space_compute_what_numpy_does(case: Case) -> None:
    """The default and one other; `tests/conformance/test_template_spaces.py` has the whole space."""
    dtype = "float32" if "float32" in case.dtypes else case.dtypes[0]
    for func in functions(case, dtype, BYTES):
        agree(func, rule(case.rule), BYTES, points(func, rule(case.rule), BYTES, 2))


@pytest.mark.sampled(most=12)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, dtype) for case in CASES[::2] for dtype in case.dtypes if dtype != "float32"],
    ids=lambda value: value if isinstance(value, str) else f"{value.rule}-{value.name}",
)
def test_the_default_computes_what_numpy_does_in_other_types(case: Case, dtype: str) -> None:
    for func in functions(case, dtype, BYTES):
        agree(func, rule(case.rule), BYTES, points(func, rule(case.rule), BYTES, 1))
