"""Coverage: equal functions as one, the heaviest first, and what is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.records.coverage import Coverage, Kernel, coverage, estimated_cycles


def row(function: str, flops: int, **fields: Any) -> dict[str, Any]:
    """A row of a schedule report."""
    usual = {
        "function": function,
        "workload": function[:1] * 16,
        "rule": "cpu.matmul",
        "version": 1,
        "dtype": "float32",
        "shapes": "8x8",
        "source": "rule",
        "record": None,
        "passed_over": [],
        "parameters": {"rows": 1},
        "flops": flops,
        "bytes": 0,
    }
    return {**usual, **fields}


def covered(*rows: dict[str, Any], calls: dict[str, int] | None = None, points: int = 9) -> Coverage:
    once = {each["function"]: 1 for each in rows}
    return coverage(rows, once | (calls or {}), lambda each: each["flops"], lambda function, rule: points)


def test_equal_functions_are_one_kernel_with_all_their_calls() -> None:
    [a, b] = covered(row("a1", 10), row("a2", 10), row("b", 30), calls={"a1": 3}).kernels
    assert (a.functions, a.calls, a.share) == (("a1", "a2"), 4, round(4 / 7, 6))
    assert (b.functions, b.calls, b.share) == (("b",), 1, round(3 / 7, 6))


def test_hot_are_the_fewest_that_make_up_95_percent() -> None:
    found = covered(row("a", 60), row("b", 34), row("c", 5), row("d", 1), row("e", 0)).kernels
    assert [kernel.functions[0] for kernel in found] == ["a", "b", "c", "d", "e"]
    assert [kernel.hot for kernel in found] == [True, True, True, False, False]
    assert [kernel.hot for kernel in covered(row("a", 95), row("b", 5)).kernels] == [True, False]
    assert [kernel.hot for kernel in covered(row("a", 0)).kernels] == [False]


def test_what_is_required() -> None:
    record = {"digest": "0" * 16, "date": "2026-11-21", "seconds": 1.0, "untuned_s": 1.0}
    found = covered(
        row("a", 60, source="record", record=record),
        row("b", 30),
        row("c", 6, parameters={}, rule="cpu.injective"),
        row("d", 4),
    )
    assert [kernel.functions[0] for kernel in found.required("hot")] == ["a", "b"]
    assert [kernel.functions[0] for kernel in found.required("all")] == ["a", "b", "d"]
    assert [kernel.functions[0] for kernel in found.missing("hot")] == ["b"]
    assert [kernel.functions[0] for kernel in found.missing("all")] == ["b", "d"]


def test_a_template_with_one_point_needs_no_record() -> None:
    assert covered(row("a", 1), points=1).required("all") == []


def test_a_kernel_comes_back_from_json() -> None:
    [kernel] = covered(row("a", 1, passed_over=[["0" * 16, "too old"]])).kernels
    assert Kernel.from_dict(kernel.to_dict()) == kernel and kernel.passed_over == (("0" * 16, "too old"),)


@pytest.mark.parametrize("tag", ["x86-64-v2", "x86-64-v4", "aarch64", "cuda-sm90"])
def test_the_estimate_is_of_what_bounds(tag: str) -> None:
    target = to_tvm(resolve(tag))
    assert estimated_cycles(1e9, 0, target) > estimated_cycles(1e8, 0, target) > 0
    assert estimated_cycles(0, 1e9, target) > estimated_cycles(0, 1e8, target) > 0
    assert estimated_cycles(1e9, 1e3, target) == estimated_cycles(1e9, 0, target)
