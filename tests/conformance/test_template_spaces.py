"""The space of every template, or 200 points of it, against numpy; samples of other dtypes, vectors and layouts."""

from __future__ import annotations

import pytest

from schedules.cpu import planning
from schedules.operators import Conv2d, Matmul
from service.lowering.target import resolve
from service.machine import missing_features
from tests.schedules.cpu.conv import test_winograd
from tests.schedules.cpu.gemm.test_matmul_packed import agree as agree_packed
from tests.schedules.cpu.gemm.test_matmul_packed import conv_op, convolution_of, cpu_named, product_of
from tests.schedules.spaces import CASES, WIDTHS, Case, agree, functions, points, rule

pytestmark = pytest.mark.slow

MOST, SOME = 200, 12
AT_ONCE = 20
"""Kernels in one library: LLVM takes long over larger ones."""

OTHERS = [
    pytest.param(case, dtype, target, id=f"{case.rule}-{case.name}-{dtype}-{bits}")
    for case in CASES
    for dtype in case.dtypes
    for bits, target in WIDTHS.items()
]


def try_points(case: Case, dtype: str, target: str, most: int) -> None:
    """Build and run `most` points of each of the case's PrimFuncs."""
    asked = rule(case.rule)
    for func in functions(case, dtype, target):
        chosen = points(func, asked, target, most)
        for at in range(0, len(chosen), AT_ONCE):
            agree(func, asked, target, chosen[at : at + AT_ONCE])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case.rule}-{case.name}") for case in CASES])
def test_the_space_computes_what_numpy_does(case: Case) -> None:
    try_points(case, "float32", "auto", MOST)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("case", "dtype", "target"), OTHERS)
def test_other_dtypes_and_vectors_compute_what_numpy_does(case: Case, dtype: str, target: str) -> None:
    if missing_features(resolve(target)):
        pytest.skip(f"this machine cannot run {target}")
    try_points(case, dtype, target, SOME)


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
