"""What `race` finds in dlight's schedules: results that threads would write where there is no element."""

from __future__ import annotations

import pytest

from benchmarks.gpu.gemm_cases import Case, prim_func
from relaxc.schedules.cuda import RULES
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm


@pytest.mark.parametrize(("columns", "inside"), [(4096, True), (4088, False)])
def test_a_result_is_not_written_behind_its_end(columns: int, inside: bool) -> None:
    """4,088 are 255 blocks of 16 and one of 8, whose condition TVM drops from the block that writes the result."""
    func = prim_func(Case(1, 1, columns, 504, "float32", "float32", n_major=False))
    rule = next(rule for rule in RULES if rule.name == "cuda.gemv")
    made = rule.apply(func, to_tvm(resolve("cuda-sm90")))
    assert isinstance(made, Schedule) is inside
    if isinstance(made, Declined):
        assert made.reason == "its threads would write behind the end of a buffer"
