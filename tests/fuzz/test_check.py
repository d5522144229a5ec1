"""What a comparison calls right, wrong, and nothing at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.fuzz import check as checking
from tests.fuzz.case import Array, Case, type_of
from tests.fuzz.check import check, differences, expected
from tests.fuzz.evaluate import Evaluator
from tests.fuzz.findings import signature, snippet


def case_of(*nodes: tuple[str, str, str], x: Array, **options: Any) -> Case:
    """A graph of unary nodes, whose last output is the graph's."""
    made = [helper.make_node(op, [given], [result]) for op, given, result in nodes]
    last = nodes[-1][2]
    case = Case(made, {}, [last], [{"x": x}], 18, options={"verify": False, **options})
    case.types = {last: type_of(Evaluator(18).values(case, {"x": x})[last])}
    return case


RISING = np.linspace(-2, 2, 8, dtype=np.float32)


def test_a_right_artifact_is_ok() -> None:
    row = check(case_of(("Exp", "x", "y"), ("Neg", "y", "z"), x=RISING))
    assert (row["kind"], row["compared"], row["unsaid"]) == ("ok", 8, 0)


def test_one_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(("Exp", "x", "y"), x=RISING)
    wrong = np.exp(RISING)
    wrong[5] *= 1.001
    monkeypatch.setattr(checking, "_session", lambda *_: lambda env: {"y": wrong})
    row = check(case)
    assert row["kind"] == "wrong" and "y 1 of 8 are wrong; [5] is" in row["said"]
    assert signature(case, row) == "wrong: Exp(float32)"
    compile(snippet(case, row), "show.py", "exec")


@pytest.mark.parametrize("got", [np.nan, np.inf, 3e38])
def test_special_values_are_compared(got: float) -> None:
    case = case_of(("Neg", "x", "y"), x=np.array([1, np.inf, 2, np.nan], np.float32))
    want = expected(case, case.envs[0], Evaluator(18))
    assert want.unsaid["y"].tolist() == [False, False, False, True]
    assert not differences({"y": np.array([-1, -np.inf, -2, 7], np.float32)}, want)  # NaN compares nothing
    assert differences({"y": np.array([-1, -np.inf, got, np.nan], np.float32)}, want)
    assert differences({"y": np.array([-1, got, -2, np.nan], np.float32)}, want)


@pytest.mark.parametrize("x", [np.full(4, np.nan, np.float32), np.ones(4, np.float32)])
def test_what_compares_nothing_is_weak(x: Array) -> None:
    assert check(case_of(("Neg", "x", "y"), x=x))["kind"] == "weak"


def test_what_a_rounding_decides_is_not_compared() -> None:
    case = case_of(("Exp", "x", "y"), ("Floor", "y", "z"), x=np.log(np.array([2, 2.5, 3, 3.5], np.float32)))
    want = expected(case, case.envs[0], Evaluator(18))
    assert want.unsaid["z"].tolist() == [True, False, True, False]
    assert not differences({"z": np.array([1, 2, 2, 3], np.float32)}, want)
    assert differences({"z": np.array([2, 3, 3, 3], np.float32)}, want)


def test_zeros_are_compared_where_most_are_zero() -> None:
    case = case_of(("Relu", "x", "y"), ("Sin", "y", "z"), x=np.array([-1, -2, -3, 1], np.float32))
    want = expected(case, case.envs[0], Evaluator(18))
    assert not want.unsaid["z"].any()
    assert differences({"z": np.array([0, 0.5, 0, np.sin(1)], np.float32)}, want)


def test_what_overflows_16_bits_in_between_is_not_compared() -> None:
    case = case_of(("Exp", "x", "y"), ("Log", "y", "z"), x=np.array([20, -1, 0, 1], np.float16))
    assert expected(case, case.envs[0], Evaluator(18)).unsaid["z"].tolist() == [True, False, False, False]


def test_what_comes_of_lost_digits_is_not_compared() -> None:
    nodes = [("Exp", "x", "e"), ("Tan", "e", "y"), ("Abs", "y", "z")]
    nodes += [("Sqrt", "z", "a"), ("Sqrt", "a", "b"), ("Sqrt", "b", "c"), ("Sqrt", "c", "d")]
    case = case_of(*nodes, x=np.array([25, 0, 0.5, 1], np.float32))
    assert expected(case, case.envs[0], Evaluator(18)).unsaid["d"].tolist() == [True, False, False, False]


def test_dtypes_and_shapes_are_compared() -> None:
    case = case_of(("Neg", "x", "y"), x=RISING)
    want = expected(case, case.envs[0], Evaluator(18))
    assert differences({}, want) == {"y": "is missing"}
    assert "float64" in differences({"y": -RISING.astype(np.float64)}, want)["y"]
    assert "shape" in differences({"y": -RISING[None]}, want)["y"]
