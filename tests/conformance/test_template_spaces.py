"""The whole space of every template, or 200 points of it, against numpy; other dtypes and vectors by a sample."""

from __future__ import annotations

import pytest

from service.lowering.target import resolve
from service.machine import missing_features
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
