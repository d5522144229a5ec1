"""Symbolic dims: evaluation without eval, and sizes found from shapes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaxc.service.errors import ArtifactCorrupt, InputShape
from relaxc.service.runtime.dims import bind, evaluate, holds, names_in, shape_of
from relaxc.service.signature import Condition, DimBounds, Signature, TensorSpec


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n", 5),
        ("2*n + 1", 11),
        ("(n - 1) // 2", 2),
        ("n % 3", 2),
        ("-n + 9", 4),
        ("min(n, 3, m)", 3),
        ("Max(n, m)", 7),
    ],
)
def test_expressions(text: str, value: int) -> None:
    assert evaluate(text, {"n": 5, "m": 7}) == value


HOSTILE = [
    "__import__('os').system('true')",
    "n.real",
    "n ** 9",
    "9 ** 9 ** 9",
    "lambda: 1",
    "n if n else 1",
    "1.5 * n",
    "True",
    "'a' * n",
    "n[0]",
    "max(n)",
    "max(*n)",
    "max(n, key=n)",
    "print(n, n)",
    "n <<  2",
    "n / 2",
    "",
    "n +",
    "n; m",
    "(" * 400,
    "-" * 600 + "n",
    "n" * 501,
    "n\0",
    "max",
    str(1 << 70),
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_integer_expression_is_refused(text: str) -> None:
    with pytest.raises(ArtifactCorrupt):
        names_in(text)


@given(st.text(max_size=30))
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        names = names_in(text)
    except ArtifactCorrupt:
        return
    with suppress(ZeroDivisionError):
        assert isinstance(evaluate(text, dict.fromkeys(names, 3)), int)


def signature(*shapes: tuple[int | str, ...], **bounds: DimBounds) -> Signature:
    """Inputs named a, b, c, … of these shapes."""
    specs = tuple(TensorSpec(chr(ord("a") + i), "float32", shape) for i, shape in enumerate(shapes))
    return Signature(specs, (), tuple(bounds.items()))


def test_names_are_bound_and_expressions_checked() -> None:
    taken = signature(("2*n + 1", "m"), ("n", 3), n=DimBounds(1, 8), m=DimBounds(1))
    assert bind(taken, [(9, 5), (4, 3)]) == {"n": 4, "m": 5}
    with pytest.raises(InputShape, match=r"axis 0 has size 8, it must be 2\*n \+ 1 = 9 \(n = 4\)"):
        bind(taken, [(8, 5), (4, 3)])


def test_a_name_that_only_an_expression_uses_is_solved_for() -> None:
    taken = signature(("2*n + 1",), ("n + m",), n=DimBounds(1, 8))
    assert bind(taken, [(9,), (10,)]) == {"n": 4, "m": 6}
    with pytest.raises(InputShape, match="for some n"):
        bind(taken, [(8,), (10,)])
    with pytest.raises(InputShape, match=r"'n' is 9, outside its bounds 1\.\.8"):
        bind(taken, [(19,), (10,)])


def test_what_cannot_be_solved_is_left_to_the_program() -> None:
    assert bind(signature(("n + m",)), [(5,)]) == {}


def test_two_inputs_that_disagree_are_named() -> None:
    with pytest.raises(InputShape, match=r"input 'b': axis 1 of \[2, 6\] has size 6, but n is 5 in input 'a'"):
        bind(signature(("n",), (2, "n")), [(5,), (2, 6)])


def test_division_by_a_size_of_zero_does_not_match() -> None:
    with pytest.raises(InputShape):
        bind(signature(("n",), ("8 // n",)), [(0,), (8,)])


def test_sizes_of_which_a_condition_does_not_hold_are_refused_by_its_reason() -> None:
    n, m = TensorSpec("x", "float32", ("n", 4)), TensorSpec("y", "float32", ("m",))
    pairs = Condition("n % 2 == 0", "node 'r' (Reshape) reshapes [n, 4] to [n // 2, 8]")
    enough = Condition("m - n >= 0", "node 'g' (GatherElements)")
    taken = Signature((n, m), (), (("n", DimBounds()), ("m", DimBounds())), (), (pairs, enough))
    assert bind(taken, [(4, 4), (5,)]) == {"n": 4, "m": 5}
    with pytest.raises(InputShape, match=r"'r' \(Reshape\) reshapes .*: n % 2 == 0 must hold, and n is 3"):
        bind(taken, [(3, 4), (5,)])
    with pytest.raises(InputShape, match="m - n >= 0 must hold, and m is 3, n is 4"):
        bind(taken, [(4, 4), (3,)])


@pytest.mark.parametrize("text", ["n", "n == m.x", "n >= 2 >= 1", "n", "== 1", "f(n) == 1"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ArtifactCorrupt):
        holds(Condition(text, ""), {"n": 1})


def test_a_condition_of_a_name_without_a_size_does_not_hold() -> None:
    assert not holds(Condition("m >= 1", ""), {"n": 1})


def test_shapes_are_computed() -> None:
    assert shape_of((1, "n", "n*2"), {"n": 3}) == (1, 3, 6)
