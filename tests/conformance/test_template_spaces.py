"""The space of every template against numpy, by dtype and vector width: all points, or as many as asked for.

pytest -m slow tests/conformance/test_template_spaces.py -k "space and float64" --points 200 -n auto
"""

from __future__ import annotations

import pytest

from relaxc.schedules.cpu import planning
from relaxc.schedules.operators import Conv2d, Matmul
from relaxc.schedules.planned import Planned
from relaxc.service.lowering.target import resolve
from relaxc.service.machine import missing_features
from tests.schedules.cpu.conv import test_winograd
from tests.schedules.cpu.gemm.test_matmul_packed import agree as agree_packed
from tests.schedules.cpu.gemm.test_matmul_packed import conv_op, convolution_of, cpu_named, product_of
from tests.schedules.spaces import (
    CASES,
    FLOATS,
    WIDTHS,
    Case,
    agree,
    first_rule,
    functions,
    network_of,
    points,
    rule,
)

pytestmark = pytest.mark.slow

MOST, SOME = 200, 12
AT_ONCE = 20
"""Kernels in one library: LLVM takes long over larger ones."""

TARGETS = {"auto": "auto", **{str(bits): target for bits, target in WIDTHS.items()}}
SPACES = [
    pytest.param(case, dtype, target, id=f"{case.rule}-{case.name}-{dtype}-{width}")
    for case in CASES
    for dtype in case.dtypes
    for width, target in TARGETS.items()
]


def skip_without(target: str) -> None:
    """Skip a test whose kernels this machine cannot run."""
    if missing := missing_features(resolve(target)):
        pytest.skip(f"{target}: this machine lacks {', '.join(missing)}")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("case", "dtype", "target"), SPACES)
def test_the_space_computes_what_numpy_does(case: Case, dtype: str, target: str, pytestconfig: pytest.Config) -> None:
    """All points, or 200, in fp32 for this machine; some in other dtypes and widths, or as many as `--points` says."""
    skip_without(target)
    most = pytestconfig.getoption("--points") or (MOST if (dtype, target) == ("float32", "auto") else SOME)
    asked = rule(case.rule)
    for func in functions(case, dtype, target):
        chosen = points(func, asked, target, most)
        for at in range(0, len(chosen), AT_ONCE):
            agree(func, asked, target, chosen[at : at + AT_ONCE])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS.values())
@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype != "float32"])
def test_what_blocked_templates_decline_others_compute_as_numpy_does(dtype: str, target: str) -> None:
    """Convolutions and pools on blocks of channels are of float32 alone."""
    skip_without(target)
    for func in network_of(dtype, target):
        taken = first_rule(func, target)
        assert not isinstance(taken, Planned), taken.name
        agree(func, taken, target, points(func, taken, target, 1))


LAID_OUT: dict[str, Conv2d | Matmul] = {
    "3x3": conv_op({"padding": (1, 1, 1, 1)}, 48, 64, 3, (13, 11)),
    "1x1 with stride": conv_op({"strides": (2, 2)}, 32, 96, 1, (9, 14)),
    "product": Matmul(m=39, n=330, k=256),
    "product of a row": Matmul(m=1, n=257, k=70),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LAID_OUT)
def test_every_layout_of_an_operator_computes_what_numpy_does(name: str) -> None:
    """The point with the least estimate of each algorithm and layout; a PrimFunc has one of them alone."""
    op, cpu = LAID_OUT[name], cpu_named("auto")
    of_layout = {planning.layout_of(plan): plan for plan in reversed(planning.space(op, cpu))}
    assert len(of_layout) > 3
    for plan in of_layout.values():
        rule, parameters = planning.template(plan.template), dict(plan.parameters)
        assert rule is not None
        if isinstance(op, Matmul):
            agree_packed(rule, product_of((op.m,), op, cpu, parameters), "auto")
        elif plan.template == "cpu.winograd":
            test_winograd.agree("auto", op, parameters)
        else:
            agree_packed(rule, convolution_of(op, cpu, parameters), "auto")
