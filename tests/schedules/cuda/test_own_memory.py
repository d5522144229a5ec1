"""What `reads_of_others` finds in dlight's schedules: an epilogue whose threads are not those that made its operand."""

from __future__ import annotations

import pytest

from benchmarks.gpu.plain_cases import PlainCase, prim_func
from relaxc.schedules.cuda import RULES
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm


@pytest.mark.parametrize(
    ("case", "own"),
    [
        (PlainCase("grouped", (1, 16, 16, 1), "bfloat16", "bfloat16", axes=(4, 64, 1, 1)), False),
        (PlainCase("grouped", (1, 36, 1, 8), "bfloat16", "bfloat16", axes=(4, 20, 1, 2)), False),
        (PlainCase("sum", (3, 40, 24), "float16", "float16", axes=(1,)), True),
    ],
)
def test_an_epilogue_reads_what_its_own_thread_wrote(case: PlainCase, own: bool) -> None:
    """944 of the first one's 1,024 numbers were wrong on an H100, without a word."""
    rule = next(rule for rule in RULES if rule.name == "cuda.reduction")
    made = rule.apply(prim_func(case), to_tvm(resolve("cuda-sm90")))
    assert isinstance(made, Schedule) is own
    if isinstance(made, Declined):
        assert "what others have in registers" in made.reason
